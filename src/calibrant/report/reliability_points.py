"""The numbers of a reliability diagram, before anything is drawn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from scipy import special

from calibrant.metrics import BinSums
from calibrant.metrics.binned import adaptive_sums
from calibrant.metrics.bins import Bins
from calibrant.predictions import Predictions

# A bin with fewer examples says next to nothing; it is drawn faintly.
FEW = 10

Filled = Float64[np.ndarray, " f"]


@dataclass(frozen=True)
class Points:
    """Bins that hold examples, in the order of confidence: means, Wilson interval, place, count.

    `left` and `right` are the ends of the bar.
    """

    confidence: Filled
    accuracy: Filled
    low: Filled
    high: Filled
    left: Filled
    right: Filled
    count: Filled

    @property
    def over(self) -> Bool[np.ndarray, " f"]:
        """Where confidence is above accuracy."""
        return self.confidence > self.accuracy

    @property
    def few(self) -> Bool[np.ndarray, " f"]:
        """Where there are too few examples to say much."""
        return self.count < FEW


def points_of(sums: BinSums, *, level: float = 0.95) -> Points:
    """Means, intervals and places of the bins that hold examples, from (b,) sums."""
    filled = np.flatnonzero(sums.count > 0)
    count = sums.count[filled]
    confidence = sums.confidence[filled] / count
    low, high = wilson(sums.correct[filled], count, level=level)
    if sums.edges is None:
        left, right = _around(confidence)
    else:
        edges = np.asarray(sums.edges)
        left, right = edges[filled], edges[filled + 1]
    return Points(confidence, sums.correct[filled] / count, low, high, left, right, count)


def wilson(correct: Filled, count: Filled, *, level: float = 0.95) -> tuple[Filled, Filled]:
    r"""Wilson's interval of a proportion; sensible for few examples and at 0 and 1.

    $$\frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4 n^2}}{1 + z^2 / n}$$

    References:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
    z = float(special.ndtri((1 + level) / 2))
    part = correct / count
    spread = z * np.sqrt((part * (1 - part)).clip(0) / count + z**2 / (4 * count**2))
    centre, scale = part + z**2 / (2 * count), 1 + z**2 / count
    return ((centre - spread) / scale).clip(0, 1), ((centre + spread) / scale).clip(0, 1)


def top_label_sums(predictions: Predictions, *, bins: Bins = 15, adaptive: bool = False) -> BinSums:
    """Sums of the top label over bins of equal width, or of equal mass as in `adaptive_ece`."""
    if not adaptive:
        return BinSums.of(predictions, bins)
    if not isinstance(bins, int):
        raise ValueError(f"adaptive bins are a number of bins, got edges {bins!r}")
    return adaptive_sums(predictions, bins=bins)


def _around(centres: Filled) -> tuple[Filled, Filled]:
    """Stretches that meet half-way between neighbours, for bins without edges."""
    if len(centres) == 1:
        return (centres - 0.03).clip(0), (centres + 0.03).clip(max=1)
    between = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - between[0], 2 * centres[-1] - between[-1]
    return (
        np.concatenate([[first], between]).clip(0),
        np.concatenate([between, [last]]).clip(max=1),
    )
