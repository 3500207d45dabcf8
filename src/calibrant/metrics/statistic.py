"""A metric with its examples fixed and their weights left open, which is what resampling needs."""

from collections.abc import Callable

from calibrant.predictions import Predictions
from calibrant.shapes import Values

# Weights, (n,) -> the metric as if example i occurred weights[i] times. Everything that does not
# depend on the weights (bins, order, kernels) is worked out once, before.
Statistic = Callable[[Values], float]


def at_own_weights(predictions: Predictions, statistic: Statistic) -> float:
    """Evaluate the metric on the predictions as they are."""
    return statistic(predictions.row_weights)
