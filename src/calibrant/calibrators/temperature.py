"""Temperature scaling, one parameter fitted exactly, and its baseline, the identity."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from calibrant.calibrators.base import Calibrator, fitting_logits, made_from
from calibrant.calibrators.masks import far_below
from calibrant.calibrators.shared_steps import once
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Logits, Values

# Up to this many scores (n times k) a first search on a subsample does not pay.
SMALL = 1 << 19
STEPS = 60
# Elements in a chunk: its arrays in float64 stay in cache together.
ELEMENTS = 1 << 16
# Half a Newton decrement estimates the distance to the minimum: 1e-15 nats is rounding.
TOLERANCE = 1e-15
# No step changes the temperature by more than this factor; default bounds, if T is about 1.
LARGEST_STEP = math.e**2
LOWEST, HIGHEST = 0.05, 100.0


class Derivatives(NamedTuple):
    """Mean loss, and its first and second derivative along one parameter."""

    loss: float
    first: float
    second: float


class Found(NamedTuple):
    """Where a search ended, and why."""

    inverse: float
    derivatives: Derivatives
    converged: bool
    remark: str = ""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Identity(Calibrator):
    r"""The uncalibrated network; it has no parameters.

    $$\log q = \log \mathrm{softmax}(z)$$

    It ignores labels, so `fit` accepts any examples, even of a single class.
    """

    keeps_argmax: ClassVar[bool] = True

    @classmethod
    def fit(cls, predictions: Predictions) -> "Identity":
        """Record the examples."""
        return cls(classes=predictions.classes, origin=made_from(predictions))

    def log_probs(self, logits: Logits) -> Logits:
        """Normalise."""
        return torch.log_softmax(logits, 1)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TemperatureScaling(Calibrator):
    r"""Divide the logits by one positive number T; preserves the predicted class.

    $$\log q = \log \mathrm{softmax}(z / T)$$

    T above 1 lowers confidence. The NLL is convex in 1/T and is minimised exactly, by bracketed
    Newton steps in float64 for any precision of the logits.

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
        """Minimise the NLL.

        Args:
            predictions: held-out examples.
            bounds: lowest and highest temperature. By default 0.05 and 100, scaled by the standard
                deviation of the logits if that widens them. A bound is reached, with a warning,
                only without an optimum: all predictions correct, or uninformative logits.
        """
        logits = fitting_logits(predictions)
        if bounds is None:
            found = best_inverse(predictions, logits)
        else:
            found = _search(predictions, logits, bounds)
        origin = made_from(predictions, abs(found.derivatives.first), found.remark)
        return cls(classes=predictions.classes, temperature=1 / found.inverse, origin=origin)

    def log_probs(self, logits: Logits) -> Logits:
        """Divide, and normalise."""
        return torch.log_softmax(logits / self.temperature, 1)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not positive and finite."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")


@once
def best_inverse(predictions: Predictions, logits: Logits) -> Found:
    """Search 1/T within the default bounds; see `TemperatureScaling.fit`."""
    some = logits.numpy()[:: 1 + len(logits) // 4096].astype(np.float64)
    spread = float(some.std(1, where=some > -np.inf).mean())
    bounds = LOWEST * min(1.0, spread or 1.0), min(HIGHEST * max(1.0, spread), 1e300)
    return _search(predictions, logits, bounds)


def _search(predictions: Predictions, logits: Logits, bounds: tuple[float, float]) -> Found:
    given, labels = far_below(logits).numpy(), predictions.labels.numpy()
    weights = predictions.example_weights
    if not 0 < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"bounds must be 0 < low < high, got {bounds}")
    ends = 1 / bounds[1], 1 / bounds[0]
    start = min(max(1.0, ends[0]), ends[1])
    if all_correct(predictions):
        # The loss decreases for ever: only the bound remains to be checked.
        start = ends[1]
    elif given.size > SMALL:
        part = slice(None, None, math.ceil(given.size / SMALL))
        rough = _newton(_derivatives(given[part], labels[part], weights[part]), start, ends)
        start = rough.inverse
    found = _newton(_derivatives(given, labels, weights), start, ends)
    return found if found.converged else found._replace(remark=_why(found, ends, predictions))


def all_correct(predictions: Predictions) -> bool:
    """Whether every example with a weight is classified correctly: then T = 0 is optimal."""
    return bool((predictions.correct.numpy()[predictions.example_weights > 0] == 1).all())


def _why(found: Found, ends: tuple[float, float], predictions: Predictions) -> str:
    if found.inverse == ends[1]:
        reason = "every prediction is correct, the examples are separable"
        if not all_correct(predictions):
            reason = "the best temperature lies below"
        return f"T hit the lower bound {1 / ends[1]:g}: {reason}"
    if found.inverse == ends[0]:
        return (
            f"T hit the upper bound {1 / ends[0]:g}: the logits do not predict the labels "
            "(are both in the same order?)"
        )
    return f"temperature: no convergence, gradient norm {abs(found.derivatives.first):.1e}"


def _newton(
    derivatives: Callable[[float], Derivatives], start: float, ends: tuple[float, float]
) -> Found:
    """Minimise a convex function of 1/T by Newton's method within a bracket."""
    low, high = ends
    at = start
    for _ in range(STEPS):
        here = derivatives(at)
        outward = (at == ends[0] and here.first >= 0) or (at == ends[1] and here.first <= 0)
        if outward or here.first == 0:
            return Found(at, here, converged=not outward)
        low, high = (low, at) if here.first > 0 else (at, high)
        convex = here.second > 0
        if convex and here.first**2 / here.second / 2 <= TOLERANCE * abs(here.loss):
            return Found(at - here.first / here.second, here, converged=True)
        step = at - here.first / here.second if convex else math.copysign(math.inf, -here.first)
        step = min(max(step, at / LARGEST_STEP), at * LARGEST_STEP)
        # The bounds themselves are allowed once; other steps stay strictly inside the bracket.
        if step <= low:
            step = low if low == ends[0] else math.sqrt(low * at)
        elif step >= high:
            step = high if high == ends[1] else math.sqrt(high * at)
        at = step
    return Found(at, here, converged=False)


def _derivatives(
    logits: np.ndarray, labels: np.ndarray, weights: Values
) -> Callable[[float], Derivatives]:
    """Prepare the mean NLL and its derivatives along 1/T, in float64, in chunks."""
    total = weights.sum()
    rows = torch.from_numpy(logits)

    def at(inverse: float) -> Derivatives:
        def of_chunk(part: slice) -> np.ndarray:
            each = nll_derivatives(logits[part], labels[part], inverse)
            return np.asarray(np.einsum("cn,n->c", each, weights[part]))

        return Derivatives(*(sum(map_chunks(of_chunk, rows, elements=ELEMENTS)) / total).tolist())

    return at


def nll_derivatives(logits: np.ndarray, labels: np.ndarray, inverse: float) -> np.ndarray:
    """NLL of each example, and its first and second derivative along 1/T, (3, n), in float64."""
    gap = logits.astype(np.float64)
    gap -= gap.max(1)[:, None]
    own = gap[np.arange(len(gap)), labels]
    scaled = np.exp(gap * inverse)
    # Sums of exp(gap / T), of that times the gap, and times its square.
    sums = [np.einsum("nk->n", scaled)]
    for _ in range(2):
        scaled *= gap
        sums.append(np.einsum("nk->n", scaled))
    mean, square = sums[1] / sums[0], sums[2] / sums[0]
    return np.stack([np.log(sums[0]) - inverse * own, mean - own, square - mean**2])
