r"""Weights of calibrators, from their out-of-fold predictions: for a blend and for a selection.

With $\bar\ell_j$ the mean out-of-fold loss of calibrator j and n independent examples, its
weight is

$$a_j \propto \pi_j \exp(-\eta\, n\, \bar\ell_j), \qquad \eta = 0.1,$$

a prior times the likelihood, tempered because it was cross-validated rather than predicted and
because all calibrators saw the same examples. The prior $\pi$ says which calibrators are reliable
on other data: structured scaling, which is regularised, more than the others, and free matrices
and step functions less. With few examples the identity has the largest prior weight.

`select` takes the calibrator with the largest weight. A blend has the weights a in its mean. The
exponents of its logarithmic pool minimise the out-of-fold log loss, shrunk towards a:

$$b = \arg\min_{b \ge 0}\ \frac{1}{n} \sum_i -\log q_b(y_i \mid x_i) + \frac{\rho}{n} \|b - a\|^2,
\qquad \rho = 30.$$

Their sum is free: it corrects what is common to all parts, such as the noise of fits to a fraction
of the examples. Prior and settings were chosen on half of the tables and files of the arena
(docs/arena.md), on calibration sets of 100 to 5,000 examples.

References:
    Yao et al., Using Stacking to Average Bayesian Predictive Distributions, Bayesian Analysis,
    2018, arXiv:1704.02030: stacking of predictive distributions.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from calibrant.calibrators.nonnegative import nonnegative_minimum
from calibrant.shapes import Index, Values

TEMPERING, SHRINKAGE = 0.1, 30.0
# Logarithms of the prior weights; 0 of those that are not named.
PRIOR = dict.fromkeys(
    (
        "structured_vector",
        "structured_matrix",
        "focal_structured_vector",
        "focal_structured_matrix",
    ),
    1.0,
) | dict.fromkeys(("matrix", "dirichlet", "isotonic", "irm", "histogram"), -1.0)
# Of the identity: (FEW / n)^1.5, with n independent examples.
IDENTITY, FEW = "identity", 115.0
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


def log_weights(losses: Mapping[str, float], *, examples: float) -> dict[str, float]:
    """Logarithms of the weights of calibrators with these mean losses, up to a constant.

    Args:
        losses: mean out-of-fold losses by name.
        examples: number of independent examples.

    Examples:
        >>> found = log_weights({"identity": 0.6, "matrix": 0.5}, examples=1000)
        >>> max(found, key=found.get)
        'matrix'
    """
    prior = PRIOR | {IDENTITY: identity_prior(examples)}
    best = min(losses.values())
    return {
        name: prior.get(name, 0.0) - TEMPERING * examples * (loss - best)
        for name, loss in losses.items()
    }


def identity_prior(examples: float) -> float:
    """Logarithm of the prior weight of the identity: 1.2 for 100 examples, 0.04 for 1,000."""
    return float((FEW / examples) ** 1.5)


def pool_exponents(
    members: Members, labels: Index, counts: Values, near: PerPart, *, independent: float = 1.0
) -> PerPart:
    """Minimise the penalised log loss of the pool by Newton steps, each with b >= 0.

    Args:
        members: out-of-fold log-probabilities; -inf for masked classes.
        labels: labels, (n,).
        counts: how many examples each row stands for, (n,).
        near: what the exponents are shrunk to, (m,).
        independent: number of independent examples relative to the sum of the counts.
    """
    masked = np.asarray(members[:, :, 0] == -np.inf)
    scores = np.where(masked[:, :, None], 0.0, members) if masked.any() else members
    share = counts / counts.sum()
    penalty = SHRINKAGE / (independent * counts.sum())
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
    log_weights: Sequence[float],
    labels: Index,
    counts: Values,
    *,
    independent: float = 1.0,
) -> Stack:
    """Fit weights and exponents; those of parts that hardly matter are 0.

    Args:
        members: out-of-fold log-probabilities of each part.
        log_weights: logarithms of their weights, up to a constant.
        labels: labels, (n,).
        counts: how many examples each row stands for, (n,).
        independent: number of independent examples relative to the sum of the counts.
    """
    weights = np.exp(np.asarray(log_weights) - max(log_weights))
    weights /= weights.sum()
    some = slice(None, None, 1 + len(labels) * members[0].shape[1] * len(members) // SCORES)
    scores = np.stack([each[some] for each in members], -1)
    exponents = pool_exponents(scores, labels[some], counts[some], weights, independent=independent)
    kept = (weights >= LEAST) | (exponents >= LEAST)
    weights = np.where(kept, weights, 0.0)
    return Stack(weights / weights.sum(), np.where(kept, exponents, 0.0))
