"""Accuracy of rows whose labels are not known yet, estimated from their confidence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from calibrant.metrics import Interval
from calibrant.metrics.bins import BinSums

# Rows of the reference that the confidence of a bin counts as: bins of few rows stay close to it.
PRIOR_ROWS = 10.0
# A window of fewer labelled rows is a reference only if there is no other.
LEAST_ROWS = 100
ASSUMPTION = "an estimate: assumes that calibration has not changed since the labelled window"
WITHOUT = "an estimate: assumes calibrated confidence, because no window has labels yet"


@dataclass(frozen=True)
class EstimatedAccuracy:
    """What the accuracy of unlabelled rows is if calibration has not changed since the reference.

    Attributes:
        accuracy: the estimate with its interval.
        mean_confidence: mean confidence of the unlabelled rows.
        rows: number of unlabelled rows.
        reference: name of the labelled window whose accuracy per bin was used; None without one.
    """

    accuracy: Interval
    mean_confidence: float
    rows: int
    reference: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the lines of windows have them."""
        return {
            **asdict(self.accuracy),
            "mean_confidence": self.mean_confidence,
            "rows": self.rows,
            "reference": self.reference,
            "assumption": WITHOUT if self.reference is None else ASSUMPTION,
        }


def estimate_accuracy(
    unlabelled: BinSums,
    reference: BinSums | None,
    *,
    reference_name: str | None = None,
    level: float = 0.95,
) -> EstimatedAccuracy:
    r"""Estimate the accuracy of unlabelled rows from a labelled reference, bin by bin.

    With $n_b$ unlabelled rows of mean confidence $u_b$ in bin b, and $m_b$ reference rows there of
    which the gap between confidence and accuracy is $g_b$,

    $$\hat a = \frac{1}{n} \sum_b n_b a_b, \qquad a_b = u_b - \frac{m_b}{m_b + 10}\, g_b$$

    so a bin with few reference rows keeps its confidence. The interval has the noise of the
    reference, $a_b (1 - a_b) / (m_b + 11)$ in each bin, and that of the unlabelled rows themselves.
    It does not contain the error made if calibration has changed: only labels can show that.

    >>> bins = BinSums.of_confidence([0.9] * 100, [1] * 80 + [0] * 20)
    >>> estimate_accuracy(bins, bins, reference_name="Monday").accuracy.value
    0.8090909090909091
    """
    rows = unlabelled.count.sum()
    if not rows:
        raise ValueError("no unlabelled rows to estimate the accuracy of")
    own = np.divide(
        unlabelled.confidence, unlabelled.count, out=np.zeros(unlabelled.bins),
        where=unlabelled.count > 0,
    )  # fmt: skip
    known = np.zeros_like(own) if reference is None else reference.count
    gap = 0.0 if reference is None else reference.confidence - reference.correct
    accuracy = (own - gap / (known + PRIOR_ROWS)).clip(0, 1)
    share, spread = unlabelled.count / rows, accuracy * (1 - accuracy)
    value = float((share * accuracy).sum())
    variance = (share**2 * spread / (known + PRIOR_ROWS + 1)).sum() + (share * spread).sum() / rows
    half = float(stats.norm.ppf((1 + level) / 2) * np.sqrt(variance))
    return EstimatedAccuracy(
        Interval(value, max(0.0, value - half), min(1.0, value + half), level),
        float(unlabelled.confidence.sum() / rows),
        int(rows),
        None if reference is None else reference_name,
    )


def last_labelled(rows: Mapping[int, int], number: int) -> int | None:
    """The reference of a window, given the labelled rows of each: the last one not after it.

    A window of fewer than 100 labelled rows is taken only if there is no larger one.
    """
    before = [each for each in rows if each <= number and rows[each]]
    large = [each for each in before if rows[each] >= LEAST_ROWS]
    return max(large or before, default=None)
