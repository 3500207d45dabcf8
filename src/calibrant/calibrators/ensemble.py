"""Ensemble temperature scaling: a mixture of tempered, plain and uniform probabilities."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from calibrant.calibrators.base import Calibrator, check_tensor, fitting_logits, made_from
from calibrant.calibrators.masks import allowed_counts, far_below, log_sum, mask_of
from calibrant.calibrators.nonnegative import nonnegative_minimum
from calibrant.calibrators.temperature import best_inverse, check_temperature, nll_derivatives
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Logits, Values

# Scores (n times k) of the subsample of the first, global search.
SMALL = 1 << 15
# Inverse temperatures of that search, as multiples of that of temperature scaling.
TRIED = np.exp(np.linspace(-1.8, 1.8, 9))
# T stays within this factor of that of temperature scaling.
FARTHEST = math.e**2
STEPS = 40
TOLERANCE = 1e-13
ROUNDING = 1e-15

# Log-probabilities of the label under the three members.
Members = Float64[np.ndarray, "3 n"]
Weights = Float64[np.ndarray, "3"]


class Mixture(NamedTuple):
    """The optimal weights at one temperature, and the derivatives of the profile along 1/T."""

    inverse: float
    weights: Weights
    loss: float
    first: float
    second: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EnsembleTemperature(Calibrator):
    r"""A mixture of softmax at temperature T, softmax, and the uniform distribution.

    $$q = w_1\,\mathrm{softmax}(z / T) + w_2\,\mathrm{softmax}(z) + w_3 / k,
    \qquad w \ge 0,\ w_1 + w_2 + w_3 = 1$$

    It includes temperature scaling and preserves the predicted class. The uniform component bounds
    the confidence, and the loss of wrong labels. As published, T is that of temperature scaling
    and only the weights are fitted; here both are fitted unless `joint=False`. The weights at a
    given T are a convex problem, solved exactly; T is found by Newton steps on the profile loss,
    within a factor of e^2 of temperature scaling. The profile is not convex: several starts are
    tried. Near T = 1 the weights of the first two components are not identifiable.

    Attributes:
        temperature: T.
        weights: (3,) of the tempered, plain and uniform component.

    References:
        Zhang et al., Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration
        in Deep Learning, ICML 2020, arXiv:2003.07329.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["overconfident"].sample(20_000, seed=0).predictions
        >>> fitted = EnsembleTemperature.fit(p)
        >>> bool(fitted(p.logits).exp().max() < p.confidence.max())
        True
    """

    temperature: float
    weights: Tensor

    keeps_argmax: ClassVar[bool] = True
    entry_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "weights": ("tempered", "plain", "uniform")
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.temperature)
        check_tensor("weights", self.weights, (3,))
        if bool((self.weights < 0).any()) or abs(float(self.weights.sum()) - 1) > 1e-9:
            given = self.weights.tolist()
            raise ValueError(f"weights must be at least 0 and sum to 1, got {given}")

    @classmethod
    def fit(cls, predictions: Predictions, *, joint: bool = True) -> "EnsembleTemperature":
        """Minimise the NLL.

        Args:
            predictions: held-out examples.
            joint: fit T together with the weights; if False, T is that of temperature scaling.
        """
        logits = fitting_logits(predictions)
        alone = best_inverse(predictions, logits)
        every = Profile(logits, predictions.labels.numpy(), predictions.example_weights)
        best = every.at(alone.inverse)
        converged, remark = alone.converged, alone.remark
        if joint and converged:
            around = alone.inverse / FARTHEST, alone.inverse * FARTHEST
            part = every.part()
            tried = [part.at(alone.inverse * factor) for factor in TRIED]
            start = _newton(part, min(tried, key=lambda mix: mix.loss), around)[0].inverse
            improved, converged = _newton(every, every.at(start), around)
            if improved.loss <= best.loss:
                best = improved
            else:
                best, converged = _newton(every, best, around)
            remark = "" if converged else f"ensemble: no convergence near T = {1 / best.inverse:g}"
        return cls(
            classes=predictions.classes,
            temperature=1 / best.inverse,
            weights=torch.from_numpy(best.weights),
            origin=made_from(predictions, abs(best.first), remark),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Mix the probabilities in log space."""
        tempered, plain, uniform = self.weights.tolist()
        masked = mask_of(logits)
        members = []
        if tempered:
            members.append(torch.log_softmax(logits / self.temperature, 1) + math.log(tempered))
        if plain:
            members.append(torch.log_softmax(logits, 1) + math.log(plain))
        if uniform:
            counts = torch.as_tensor(allowed_counts(masked, self.classes)).to(logits)
            members.append((math.log(uniform) - counts.log()).expand_as(logits))
        return log_sum(members, masked)


class Profile:
    """The NLL at the optimal weights, as a function of the inverse temperature."""

    def __init__(self, logits: Logits, labels: np.ndarray, weights: Values) -> None:
        self.given, self.logits, self.labels = logits, far_below(logits), labels
        self.weights = weights / weights.sum()
        self.members = np.empty((3, len(logits)))
        self.members[1] = self._label(1.0)[0]
        counts = torch.as_tensor(allowed_counts(mask_of(logits), logits.shape[1]))
        self.members[2] = -np.log(counts.flatten().numpy())
        self.mixture = np.full(3, 1 / 3)

    def part(self) -> "Profile":
        """Return the profile of evenly spaced examples; of all if there are few."""
        some = slice(None, None, math.ceil(self.logits.numel() / SMALL))
        if some.step == 1 or not self.weights[some].any():
            return self
        return Profile(self.given[some], self.labels[some], self.weights[some])

    def at(self, inverse: float) -> Mixture:
        r"""Optimal weights, and loss and derivatives of the profile.

        With $f(\beta, w)$ the loss, the first derivative is $f_\beta$ and the second
        $f_{\beta\beta} - f_{\beta w} f_{ww}^{-1} f_{w \beta}$ over the weights that are not 0.
        """
        self.members[0], along, spread = self._label(inverse)
        weights, loss = best_weights(self.members, self.weights, self.mixture)
        self.mixture = weights
        ratio = _ratios(self.members, weights)
        first = weights[0] * ratio[0] * along
        second = float(self._mean(first**2 - weights[0] * ratio[0] * (along**2 - spread)))
        cross = self._mean(first * ratio)
        cross[0] -= self._mean(ratio[0] * along)
        support = np.flatnonzero(weights > 0)
        # Directions that preserve the sum of the weights.
        inside = np.eye(3)[:, support[1:]] - np.eye(3)[:, support[:1]]
        hessian = np.einsum("in,jn,n->ij", ratio, ratio, self.weights)
        cross = inside.T @ cross
        second -= float(cross @ np.linalg.pinv(inside.T @ hessian @ inside, rcond=1e-10) @ cross)
        return Mixture(inverse, weights, loss, -float(self._mean(first)), second)

    def _mean(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("...n,n->...", values, self.weights))

    def _label(self, inverse: float) -> np.ndarray:
        """Log-probability of the label, its derivative along 1/T and minus the second, (3, n)."""
        given = self.logits.numpy()

        def of_chunk(part: slice) -> np.ndarray:
            return nll_derivatives(given[part], self.labels[part], inverse)

        found = np.concatenate(list(map_chunks(of_chunk, self.logits)), 1)
        return found * [[-1], [-1], [1]]


def best_weights(members: Members, weights: Values, start: Weights) -> tuple[Weights, float]:
    """Minimise the NLL of a mixture over weights on the simplex; return both.

    The sum of the weights is added to the loss instead of constrained: the optimum then sums to 1.
    Each step solves the quadratic model exactly.
    """
    at = 0.9 * start + 0.1 / 3
    loss = _loss(members, weights, at)
    for _ in range(STEPS):
        ratio = _ratios(members, at)
        gradient = 1 - np.einsum("jn,n->j", ratio, weights)
        # The largest directional derivative bounds the distance to the minimum.
        if -gradient.min() <= TOLERANCE and abs(at @ gradient) <= TOLERANCE:
            break
        hessian = np.einsum("in,jn,n->ij", ratio, ratio, weights)
        hessian += 1e-12 * np.trace(hessian) * np.eye(3)
        target = nonnegative_minimum(hessian, gradient - hessian @ at)
        slope, step = float(gradient @ (target - at)), 1.0
        # The remaining decrease is rounding.
        if -slope <= ROUNDING:
            at = target
            break
        while step > 1e-10:
            trial = at + step * (target - at)
            new = _loss(members, weights, trial)
            if new <= loss + 1e-4 * step * slope:
                break
            step /= 2
        else:
            break
        at, loss = trial, new
    at = at / at.sum()
    return at, _loss(members, weights, at) - 1


def _log_mixture(members: Members, at: Weights) -> Values:
    used = at > 0
    shifted = members[used] + np.log(at[used])[:, None]
    top = shifted.max(0)
    return np.asarray(top + np.log(np.exp(shifted - top).sum(0)))


def _loss(members: Members, weights: Values, at: Weights) -> float:
    if not at.any():
        return math.inf
    return float(at.sum() - np.einsum("n,n->", weights, _log_mixture(members, at)))


def _ratios(members: Members, at: Weights) -> Members:
    """Ratio of each component's probability of the label to that of the mixture."""
    # The limit only matters for components of weight zero.
    return np.asarray(np.exp(np.minimum(members - _log_mixture(members, at), 300.0)))


def _newton(profile: Profile, start: Mixture, ends: tuple[float, float]) -> tuple[Mixture, bool]:
    """Newton's method along the profile, with backtracking."""
    at, limit = start, 2.0
    for _ in range(STEPS):
        convex = at.second > 0
        if at.first == 0 or (convex and at.first**2 / at.second / 2 <= TOLERANCE * at.loss):
            return at, True
        step = at.inverse - at.first / at.second if convex else math.copysign(math.inf, -at.first)
        step = min(max(step, at.inverse / limit, ends[0]), at.inverse * limit, ends[1])
        if step == at.inverse:
            # At a bound, and the loss decreases outwards.
            return at, True
        trial = profile.at(step)
        if trial.loss <= at.loss:
            at, limit = trial, min(2.0, limit**2)
        elif abs(trial.loss - at.loss) <= 1e-15 * at.loss:
            return at, True
        else:
            limit = math.sqrt(max(step / at.inverse, at.inverse / step))
    return at, False
