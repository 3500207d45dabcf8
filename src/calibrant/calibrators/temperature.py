"""Temperature scaling: one number, found exactly."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from calibrant.calibrators.base import Calibrator, fitting_logits, made_from
from calibrant.calibrators.masks import far_below
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Logits, Values

# Numbers (n times k) up to which a first search on a part of the rows does not pay.
SMALL = 1 << 19
STEPS = 60
# Numbers in a chunk: its arrays in float64 stay in cache together.
ELEMENTS = 1 << 16
# Half a Newton decrement is how far the loss is from its least value: 1e-15 nats is rounding.
TOLERANCE = 1e-15
# No step multiplies or divides the temperature by more than this; the bounds, if T is about 1.
LARGEST_STEP = math.e**2
LOWEST, HIGHEST = 0.05, 100.0


class Slope(NamedTuple):
    """Mean loss, and its first and second derivative along one parameter."""

    loss: float
    first: float
    second: float


class Found(NamedTuple):
    """Where a search ended, and why."""

    inverse: float
    slope: Slope
    converged: bool
    remark: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperatureScaling(Calibrator):
    r"""One positive number T that divides the logits; keeps the predicted class.

    $$\log q = \log \mathrm{softmax}(z / T)$$

    T above 1 lowers confidence. The log score is convex in 1/T, so it is minimised exactly, by
    Newton steps in float64 inside a bracket, whatever the precision of the logits.

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> round(TemperatureScaling.fit(p).temperature, 1)
        2.0
    """

    temperature: float

    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    @classmethod
    def fit(
        cls, predictions: Predictions, *, bounds: tuple[float, float] | None = None
    ) -> "TemperatureScaling":
        """Minimise the log score.

        Args:
            predictions: held-out examples.
            bounds: least and greatest temperature. If not given 0.05 and 100, wider where the
                logits spread less than 1 or more. A bound is reached, with a warning, only if
                there is no best temperature: all answers right, or logits that tell nothing.
        """
        found = best_inverse(predictions, fitting_logits(predictions), bounds=bounds)
        return cls(
            classes=predictions.classes,
            temperature=1 / found.inverse,
            origin=made_from(
                predictions,
                converged=found.converged,
                gradient_norm=abs(found.slope.first),
                remark=found.remark,
            ),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Divide, and normalise."""
        return torch.log_softmax(logits / self.temperature, 1)


def check_temperature(temperature: float) -> None:
    """Refuse what does not divide logits."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")


def best_inverse(
    predictions: Predictions, logits: Logits, *, bounds: tuple[float, float] | None = None
) -> Found:
    """Search 1/T; see `TemperatureScaling.fit`."""
    given, labels = far_below(logits).numpy(), predictions.labels.numpy()
    weights = predictions.example_weights
    if bounds is None:
        some = logits.numpy()[:: 1 + len(given) // 4096].astype(np.float64)
        spread = float(some.std(1, where=some > -np.inf).mean())
        bounds = LOWEST * min(1.0, spread or 1.0), min(HIGHEST * max(1.0, spread), 1e300)
    if not 0 < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"bounds must be 0 < low < high, got {bounds}")
    ends = 1 / bounds[1], 1 / bounds[0]
    start = min(max(1.0, ends[0]), ends[1])
    if all_right(predictions):
        # The loss falls for ever: what is left to see is whether it still does at the bound.
        start = ends[1]
    elif given.size > SMALL:
        part = slice(None, None, math.ceil(given.size / SMALL))
        rough = _newton(_slopes(given[part], labels[part], weights[part]), start, ends)
        start = rough.inverse
    found = _newton(_slopes(given, labels, weights), start, ends)
    if found.converged:
        return found
    return found._replace(remark=_why(found, ends, predictions))


def all_right(predictions: Predictions) -> bool:
    """Whether every example that counts is predicted right: then lower temperature is better."""
    return bool((predictions.correct.numpy()[predictions.example_weights > 0] == 1).all())


def _why(found: Found, ends: tuple[float, float], predictions: Predictions) -> str:
    if found.inverse == ends[1]:
        reason = "every answer is right, the examples are separable"
        if not all_right(predictions):
            reason = "the best temperature lies below"
        return f"T hit the lower bound {1 / ends[1]:g}: {reason}"
    if found.inverse == ends[0]:
        return (
            f"T hit the upper bound {1 / ends[0]:g}: the logits tell nothing about these labels "
            "(do rows and labels belong together?)"
        )
    return f"temperature: no convergence, gradient norm {abs(found.slope.first):.1e}"


def _newton(slope_at: Callable[[float], Slope], start: float, ends: tuple[float, float]) -> Found:
    """Newton's method on a convex function of 1/T; outside its bracket a step is cut short."""
    low, high = ends
    at = start
    for _ in range(STEPS):
        slope = slope_at(at)
        outward = (at == ends[0] and slope.first >= 0) or (at == ends[1] and slope.first <= 0)
        if outward:
            return Found(at, slope, converged=False)
        if slope.first == 0:
            return Found(at, slope, converged=True)
        if slope.first > 0:
            high = at
        else:
            low = at
        curved = slope.second > 0
        if curved and slope.first**2 / slope.second / 2 <= TOLERANCE * abs(slope.loss):
            return Found(at - slope.first / slope.second, slope, converged=True)
        step = at - slope.first / slope.second if curved else math.copysign(math.inf, -slope.first)
        step = min(max(step, at / LARGEST_STEP), at * LARGEST_STEP)
        # Both ends count as inside once; between two evaluated points the step must fall between.
        if step <= low:
            step = low if low == ends[0] else math.sqrt(low * at)
        elif step >= high:
            step = high if high == ends[1] else math.sqrt(high * at)
        at = step
    return Found(at, slope, converged=False)


def _slopes(logits: np.ndarray, labels: np.ndarray, weights: Values) -> Callable[[float], Slope]:
    """Mean log score and its derivatives along 1/T, in float64, chunk by chunk."""
    total = weights.sum()
    rows = torch.from_numpy(logits)

    def at(inverse: float) -> Slope:
        def of_chunk(part: slice) -> np.ndarray:
            gap = logits[part].astype(np.float64)
            gap -= gap.max(1)[:, None]
            own = gap[np.arange(len(gap)), labels[part]]
            scaled = np.exp(gap * inverse)
            # Weights of the classes, then of the gaps, then of their squares.
            sums = [np.einsum("nk->n", scaled)]
            for _ in range(2):
                scaled *= gap
                sums.append(np.einsum("nk->n", scaled))
            mean, square = sums[1] / sums[0], sums[2] / sums[0]
            each = np.stack([np.log(sums[0]) - inverse * own, mean - own, square - mean**2])
            return np.asarray(np.einsum("cn,n->c", each, weights[part]))

        return Slope(*(sum(map_chunks(of_chunk, rows, elements=ELEMENTS)) / total).tolist())

    return at
