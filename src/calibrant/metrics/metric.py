"""The descriptor of a metric, for intervals, tables and early stopping."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from calibrant.predictions import Predictions
from calibrant.shapes import Values

MetricFunction = Callable[[Predictions], float]
# Weights, (n,) -> the metric as if example i occurred weights[i] times. What does not depend on the
# weights (bins, order, kernels) is precomputed.
Statistic = Callable[[Values], float]


def at_own_weights(predictions: Predictions, statistic: Statistic) -> float:
    """Evaluate the metric with the weights of the predictions."""
    return statistic(predictions.example_weights)


@dataclass(frozen=True)
class Metric:
    """One metric; calling it calls its function.

    Attributes:
        function: `Predictions -> float`; its options are keyword-only.
        statistic: the resampling form: predictions and the same options -> function of weights.
        label: name in tables and charts, such as "adaptive ECE".
        meaning: a few words, at most 32 characters.
        best: which values are better: "lower", "higher", or the nearest to "zero" or "one".
        range: smallest and largest possible value; intervals are clipped to it.
        proper: a proper scoring rule: the true probabilities have the best expected value.
        calibration_error: zero if predictions are calibrated, up to sampling noise.
        takes_bins: has the option `bins`, the bins of the confidence.
        two_classes: is defined for two classes only, by the probability of class 1.
        every_class: needs the probabilities of all classes, not only the confidence.
        confidence_only: is in summaries only where nothing but the confidence is known.
        definition: one standard sentence, for tips and footnotes.
        name: name in `METRICS`, files and options of the command line: that of the function.
    """

    function: Callable[..., float]
    statistic: Callable[..., Statistic]
    label: str
    meaning: str
    best: Literal["lower", "higher", "zero", "one"] = "lower"
    range: tuple[float, float] = (0.0, 1.0)
    proper: bool = False
    calibration_error: bool = False
    takes_bins: bool = False
    two_classes: bool = False
    every_class: bool = False
    confidence_only: bool = False
    definition: str = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    def __call__(self, predictions: Predictions, **options: Any) -> float:
        """Measure the predictions."""
        return self.function(predictions, **options)

    def with_bins(self, bins: int) -> MetricFunction:
        """Return the function with this number of bins, or unchanged if it has no bins."""
        return partial(self.function, bins=bins) if self.takes_bins else self.function

    def loss(self, value: float) -> float:
        """Convert a value so that lower is better."""
        if self.best in ("zero", "one"):
            return abs(value - (self.best == "one"))
        return -value if self.best == "higher" else value
