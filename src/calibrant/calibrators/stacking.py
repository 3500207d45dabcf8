r"""Weights of a blend, from the out-of-fold predictions of its parts.

With $\bar\ell_j$ the mean out-of-fold log loss of part j and n examples, the mean has the weights

$$a_j \propto \pi_j \exp(-\eta\, n\, \bar\ell_j), \qquad \eta = 0.1,$$

the likelihood of the parts, tempered because it was cross-validated rather than predicted and
because all parts saw the same examples. The prior weight $\pi$ is e for the identity, towards
which this shrinks few examples, and 1 for the others. The exponents of the logarithmic pool
minimise the out-of-fold log loss, shrunk towards a:

$$b = \arg\min_{b \ge 0}\ \frac{1}{n} \sum_i -\log q_b(y_i \mid x_i) + \frac{\rho}{n} \|b - a\|^2,
\qquad \rho = 30.$$

Their sum is free: it corrects what is common to all parts, such as the noise of fits to a fraction
of the examples. All settings were chosen on half of the tables and files of the arena
(docs/arena.md), on calibration sets of 100 to 5,000 examples.

References:
    Yao et al., Using Stacking to Average Bayesian Predictive Distributions, Bayesian Analysis,
    2018, arXiv:1704.02030: stacking of predictive distributions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from calibrant.calibrators.nonnegative import nonnegative_minimum
from calibrant.shapes import Index, Values

TEMPERING, SHRINKAGE, FAVOUR = 0.1, 30.0, 1.0
# Parts whose weight and exponent are both below this are left out.
LEAST = 0.01
# Scores (n times k times parts) from which the exponents are estimated.
SCORES = 1 << 22
STEPS, TOLERANCE = 30, 1e-10

# Log-probabilities of m parts.
Members = Float64[np.ndarray, "n k m"]
PerPart = Float64[np.ndarray, "m"]


class Stack(NamedTuple):
    """Weights of the mean and exponents of the pool, one for each part."""

    weights: PerPart
    exponents: PerPart


def mean_weights(
    losses: Sequence[float], examples: float, *, favoured: Sequence[bool] = ()
) -> PerPart:
    """Weights of the mean from mean out-of-fold losses; `favoured` parts have a larger prior.

    Examples:
        >>> mean_weights([0.50, 0.51], 1000).round(2).tolist()
        [0.73, 0.27]
    """
    behind = np.asarray(losses) - min(losses)
    weights = np.exp(-TEMPERING * examples * behind)
    if favoured:
        weights[np.asarray(favoured)] *= np.exp(FAVOUR)
    return np.asarray(weights / weights.sum())


def pool_exponents(members: Members, labels: Index, counts: Values, near: PerPart) -> PerPart:
    """Minimise the penalised log loss of the pool by Newton steps, each with b >= 0.

    Args:
        members: out-of-fold log-probabilities; -inf for masked classes.
        labels: labels, (n,).
        counts: how many examples each row stands for, (n,).
        near: what the exponents are shrunk to, (m,).
    """
    masked = np.asarray(members[:, :, 0] == -np.inf)
    scores = np.where(masked[:, :, None], 0.0, members) if masked.any() else members
    share = counts / counts.sum()
    penalty = SHRINKAGE / counts.sum()
    own = np.einsum("nm,n->m", scores[np.arange(len(labels)), labels], share)

    def at(exponents: PerPart) -> tuple[float, np.ndarray]:
        logits = scores @ exponents
        logits[masked] = -np.inf
        top = logits.max(1)
        probs = np.exp(logits - top[:, None])
        total = probs.sum(1)
        loss = share @ (top + np.log(total)) - own @ exponents
        return float(loss + penalty * ((exponents - near) ** 2).sum()), probs / total[:, None]

    found = near.copy()
    loss, probs = at(found)
    for _ in range(STEPS):
        mean = np.einsum("nk,nkm->nm", probs, scores)
        gradient = share @ mean - own + 2 * penalty * (found - near)
        rooted = (scores - mean[:, None]) * np.sqrt(probs * share[:, None])[:, :, None]
        rooted = rooted.reshape(-1, len(found))
        hessian = rooted.T @ rooted + 2 * penalty * np.eye(len(found))
        aim = nonnegative_minimum(hessian, gradient - hessian @ found)
        slope, step = float(gradient @ (aim - found)), 1.0
        if -slope <= TOLERANCE:
            break
        while (new := at(found + step * (aim - found)))[0] > loss + 1e-4 * step * slope:
            step /= 2
            if step < TOLERANCE:
                return found
        found = found + step * (aim - found)
        loss, probs = new
    return found


def stack(
    members: Sequence[Float64[np.ndarray, "n k"]],
    losses: Sequence[float],
    labels: Index,
    counts: Values,
    *,
    units: float,
    favoured: Sequence[bool] = (),
) -> Stack:
    """Fit weights and exponents; those of parts that hardly matter are 0.

    Args:
        members: out-of-fold log-probabilities of each part.
        losses: their mean log losses.
        labels: labels, (n,).
        counts: how many examples each row stands for, (n,).
        units: number of independent examples, for the weights of the mean: of groups, if the
            examples of a group depend on each other.
        favoured: which parts have a larger prior weight.
    """
    weights = mean_weights(losses, units, favoured=favoured)
    some = slice(None, None, 1 + len(labels) * members[0].shape[1] * len(members) // SCORES)
    scores = np.stack([each[some] for each in members], -1)
    exponents = pool_exponents(scores, labels[some], counts[some], weights)
    kept = (weights >= LEAST) | (exponents >= LEAST)
    weights = np.where(kept, weights, 0.0)
    return Stack(weights / weights.sum(), np.where(kept, exponents, 0.0))
