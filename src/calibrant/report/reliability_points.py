"""The numbers of a reliability diagram, before anything is drawn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy import special

from calibrant.metrics import BinSums, positive_sums
from calibrant.metrics.binary import positive_values
from calibrant.metrics.binned import adaptive_sums, equal_mass_sums, tie_starts
from calibrant.metrics.bins import Bins
from calibrant.predictions import Predictions

# A bin with fewer examples says next to nothing; it is drawn faintly.
FEW = 10


@dataclass(frozen=True)
class Terms:
    """What the axes and shapes of a diagram stand for.

    `events` are what the frequency counts, `overall` is that of all examples.
    """

    score: str = "confidence"
    frequency: str = "accuracy"
    over: str = "over-confident"
    under: str = "under-confident"
    events: tuple[str, str] = ("correct", "wrong")
    overall: str = "accuracy"

    @property
    def pair_key(self) -> dict[str, str]:
        """What the shapes of a pair mean."""
        return {
            "bar": self.frequency,
            "over": self.over,
            "under": self.under,
            "whisker": "95 % interval",
            "bar faint": f"under {FEW} examples",
        }

    @property
    def diagonal(self) -> str:
        """How to read a diagram."""
        return (
            f"On the diagonal, {self.score} equals {self.frequency}; below it the model is "
            f"{self.over}."
        )

    @property
    def histogram_key(self) -> dict[str, str]:
        """What the shapes of a histogram mean."""
        return dict(zip(("right", "wrong"), self.events, strict=True))


TOP_LABEL = Terms()
POSITIVE = Terms(
    "probability",
    "frequency",
    "over-predicting",
    "under-predicting",
    ("positive", "negative"),
    "base rate",
)

Filled = Float64[np.ndarray, " f"]


@dataclass(frozen=True)
class Points:
    """Bins that hold examples, in the order of confidence: means, Wilson interval, position, count.

    `left` and `right` are the bounds of the bar.
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


def points_of(sums: BinSums, *, level: float = 0.95, merge: bool = False) -> Points:
    """Means, intervals and positions of the bins that hold examples, from (b,) sums.

    With `merge`, as for lines, neighbours are pooled until each holds at least `FEW` examples:
    means of fewer would be spikes of noise.
    """
    filled = np.flatnonzero(sums.count > 0)
    if sums.edges is None:
        left, right = _around(sums.confidence[filled] / sums.count[filled])
    else:
        edges = np.asarray(sums.edges)
        left, right = edges[filled], edges[filled + 1]
    starts = _starts(sums.count[filled]) if merge else np.arange(len(filled))
    count, confidence, correct = (
        np.add.reduceat(each[filled], starts) if len(starts) else each[filled]
        for each in (sums.count, sums.confidence, sums.correct)
    )
    low, high = wilson(correct, count, level=level)
    ends = np.append(starts[1:], len(filled)) - 1
    means = confidence / count, correct / count
    return Points(*means, low, high, left[starts], right[ends], count)


def _starts(count: Filled) -> Int64[np.ndarray, " g"]:
    """First bins of pools with at least `FEW` examples; a rest joins the last pool."""
    starts, held = [0], 0.0
    for at, each in enumerate(count):
        if held >= FEW and count[at:].sum() >= FEW:
            starts.append(at)
            held = 0.0
        held += each
    return np.array(starts[: len(count)])


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


def diagram_sums(
    predictions: Predictions,
    terms: Terms = TOP_LABEL,
    *,
    bins: Bins = 15,
    adaptive: bool = False,
) -> BinSums:
    """Sums of the top label or of the positive class, over bins of equal width.

    With `adaptive` the bins have equal mass, as in `adaptive_ece`.
    """
    positive = terms is POSITIVE
    if not adaptive:
        return positive_sums(predictions, bins=bins) if positive else BinSums.of(predictions, bins)
    if not isinstance(bins, int):
        raise ValueError(f"adaptive bins are a number of bins, got edges {bins!r}")
    if not positive:
        return adaptive_sums(predictions, bins=bins)
    probs, hits = positive_values(predictions)
    order = np.argsort(probs, kind="stable")
    weights = predictions.example_weights[order]
    return equal_mass_sums(probs[order], hits[order], weights, tie_starts(probs[order]), bins)


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
