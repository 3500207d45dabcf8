"""Gap temperature scaling: a temperature that depends on the lead of the predicted class."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.calibrators.base import Calibrator, fitting_logits, made_from
from calibrant.calibrators.masks import far_below, log_softmax, mask_of
from calibrant.calibrators.temperature import best_inverse, check_temperature, nll_derivatives
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Logits, Values

# Below -1 the calibrated gap would decrease in the gap; above 3 few data have an optimum.
LOWEST, HIGHEST = -1.0, 3.0
# Precision of the normal prior of b.
PRIOR = 10.0
# 1/T differs from that of temperature scaling by at most this factor.
SPAN = math.log(1000)
# Scores (n times k) of a first search on a subsample, and elements in a chunk.
ROUGH, ELEMENTS = 1 << 18, 1 << 15
STEPS = 100
# Half a Newton decrement estimates the distance to the minimum, here relative to the loss.
TOLERANCE, ROUNDING = 1e-14, 1e-11
# Bounds of the logarithm of the factor and of the scaled gaps, within float32.
LARGEST_FACTOR, FARTHEST = 80.0, 1e30

# Mean loss, gradient (2,) and Hessian (2, 2) at (log 1/T, b).
Objective = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GapTemperatureScaling(Calibrator):
    r"""Divide the logits by a temperature that depends on the gap g of the two largest logits.

    $$\log q = \log \mathrm{softmax}(z / T(g)), \qquad \frac{1}{T(g)} = \frac{1}{T}
    \left(1 + \frac{g}{T}\right)^b, \qquad g = z_{(1)} - z_{(2)}$$

    `b = 0` is temperature scaling, where the search starts, so the NLL of the fitted data is never
    above it. With b below 0 large gaps are divided by more, above 0 by less. The predicted class is
    preserved, and the calibrated gap never decreases in g, since b is at least -1. For two classes
    it is an odd function of the log-odds. A multiple of the logits gives the same multiple of T.
    Masked classes do not count; an example with a single allowed class has a gap of 0.

    The mean NLL plus $5 b^2 / n$ is minimised: a normal prior of variance 1/10 keeps few examples
    near temperature scaling, and vanishes for many. Newton steps have written-out derivatives in
    float64. The loss is not convex in the two parameters, so the minimum may be local. At b = -1
    the fit is the constrained optimum.
    """

    temperature: float
    b: float

    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not LOWEST <= self.b <= HIGHEST:
            raise ValueError(f"b must lie between {LOWEST:g} and {HIGHEST:g}, got {self.b}")

    @classmethod
    def fit(cls, predictions: Predictions) -> "GapTemperatureScaling":
        """Minimise the NLL and the prior."""
        logits = fitting_logits(predictions)
        plain = best_inverse(predictions, logits)
        inverse, b, gradient = plain.inverse, 0.0, abs(plain.derivatives.first)
        remark = plain.remark
        if plain.converged:
            found = _search(predictions, logits, math.log(inverse))
            inverse, b = (float(value) for value in (np.exp(found.at[0]), found.at[1]))
            gradient, remark = found.gradient, found.remark
        return cls(
            classes=predictions.classes,
            temperature=1 / inverse,
            b=b,
            origin=made_from(predictions, gradient, remark),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Divide each row by its temperature, and normalise."""
        masked, top = mask_of(logits), logits.amax(1, keepdim=True)
        below = logits - top if masked is None else (logits - top).masked_fill(masked, 0.0)
        log_factor = self.b * torch.log1p(_gaps(logits) / self.temperature)
        factor = (log_factor - math.log(self.temperature)).clamp(max=LARGEST_FACTOR).exp()
        return log_softmax((below * factor).clamp(min=-FARTHEST), masked)


def _gaps(logits: Logits) -> Float[Tensor, "n 1"]:
    """Difference of the two largest logits of each row; 0 if only one class is allowed."""
    if logits.shape[1] == 1:
        return torch.zeros_like(logits)
    highest = logits.topk(2, dim=1).values
    first, second = highest[:, :1], highest[:, 1:]
    return first - torch.where(second.isneginf(), first, second)


class Found(NamedTuple):
    """Where the search ended, (log 1/T, b), and why."""

    at: np.ndarray
    loss: float
    gradient: float
    remark: str = ""


def _search(predictions: Predictions, logits: Logits, start: float) -> Found:
    gaps = _gaps(logits).double().numpy()[:, 0]
    data = far_below(logits).numpy(), gaps, predictions.labels.numpy(), predictions.example_weights
    bounds = np.array([[start - SPAN, LOWEST], [start + SPAN, HIGHEST]])
    at = np.array([start, 0.0])
    part = slice(None, None, math.ceil(logits.numel() / ROUGH))
    if part.step > 1 and data[-1][part].any():
        rough = _newton(objective(*(each[part] for each in data)), at, bounds)
        at = rough.at
    exact = objective(*data)
    found = _newton(exact, at, bounds)
    alone = exact(np.array([start, 0.0]))[0]
    if found.loss <= alone:
        return found
    return _newton(exact, np.array([start, 0.0]), bounds)


def objective(logits: np.ndarray, gaps: Values, labels: Index, weights: Values) -> Objective:
    r"""Mean NLL and prior as functions of (log 1/T, b), with derivatives, in chunks.

    The NLL of an example depends on $\eta = \log(1/T) + b \log(1 + g/T)$, the log of its factor.
    """
    total = weights.sum()
    weights, ridge = weights / total, PRIOR / total
    rows = torch.from_numpy(logits)

    def at(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        inverse, b = math.exp(point[0]), point[1]
        scaled = gaps * inverse
        slow, share = np.log1p(scaled), scaled / (1 + scaled)
        # A bound on the exponent keeps overflow out of trial steps.
        factor = np.exp(np.minimum(point[0] + b * slow, LARGEST_FACTOR))

        def of_chunk(part: slice) -> np.ndarray:
            below = logits[part].astype(np.float64)
            below -= below.max(1)[:, None]
            below *= factor[part, None]
            return nll_derivatives(np.maximum(below, -FARTHEST), labels[part], 1.0)

        loss, first, second = np.concatenate(list(map_chunks(of_chunk, rows, elements=ELEMENTS)), 1)
        first *= weights
        # Along eta, whose gradient is (1 + b share, slow).
        second = second * weights + first
        along = np.stack([1 + b * share, slow])
        hessian = np.einsum("in,jn,n->ij", along, along, second)
        hessian[0, 0] += first @ (b * share * (1 - share))
        hessian[0, 1] += first @ share
        hessian[1, 0] = hessian[0, 1]
        hessian[1, 1] += ridge
        gradient = along @ first + np.array([0.0, ridge * b])
        return float(loss @ weights) + ridge * b * b / 2, gradient, hessian

    return at


def _newton(objective: Objective, start: np.ndarray, bounds: np.ndarray) -> Found:
    """Newton's method with backtracking within a box; never ends above the start."""
    at = start
    loss, gradient, hessian = objective(at)
    for _ in range(STEPS):
        outward = ((at <= bounds[0]) & (gradient >= 0)) | ((at >= bounds[1]) & (gradient <= 0))
        direction = _descent(np.where(outward, 0.0, gradient), hessian, ~outward)
        slope = float(gradient @ direction)
        norm = float(np.linalg.norm(gradient[~outward]))
        if -slope / 2 <= TOLERANCE * loss:
            hit = [(1, HIGHEST, "b"), (0, bounds[0, 0], "log(1/T)"), (0, bounds[1, 0], "log(1/T)")]
            which = [name for index, end, name in hit if at[index] == end]
            text = f"gap temperature: {which[0]} hit its bound" if which else ""
            return Found(at, loss, norm, text)
        step = 1.0
        while step > 1e-5:
            trial = np.clip(at + step * direction, *bounds)
            new, *derivatives = objective(trial)
            if new <= loss + 1e-4 * min(0.0, float(gradient @ (trial - at))):
                break
            step /= 4
        else:
            # Near the minimum the decrease is lost in rounding.
            if -slope <= ROUNDING * loss:
                return Found(at, loss, norm)
            break
        at, loss, (gradient, hessian) = trial, new, derivatives
    return Found(at, loss, norm, f"gap temperature: no convergence, gradient norm {norm:.1e}")


def _descent(gradient: np.ndarray, hessian: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Newton step along the free parameters, made a descent by absolute eigenvalues."""
    held = np.where(np.outer(free, free), hessian, 0.0)
    values, vectors = np.linalg.eigh(held)
    curvature = np.maximum(np.abs(values), 1e-10 * np.abs(values).max() + 1e-300)
    step = -vectors @ ((vectors.T @ gradient) / curvature)
    return np.asarray(np.where(free, np.clip(step, -2.0, 2.0), 0.0))
