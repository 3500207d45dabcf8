r"""The intercept of a slice that determines no slope: of one class, or of two that scores separate.

The slopes are those of all examples. The intercept b makes the mean probability the smoothed
frequency of the positive class,

$$\sum_i n_i\, \sigma(s_i + b) = n \, \frac{n_1 + 1/2}{n + 1}, \qquad n = \sum_i n_i,$$

with weights $n_i$ as counts, so it is finite without positives or without negatives.

References:
    Jeffreys, An invariant form for the prior probability in estimation problems, 1946.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling
from calibrant.calibrators.shrinkage import coordinates, with_coordinates
from calibrant.predictions import Predictions
from calibrant.shapes import Values

# Added to the examples of either class.
PSEUDO_COUNT = 0.5


def intercept_alone(overall: Calibrator, part: Predictions) -> tuple[Values, Values]:
    """Coordinates and 1 / v, (d,) each, with an own intercept; those of all without one."""
    point = coordinates(overall)
    precisions = np.zeros_like(point)
    if not isinstance(overall, PlattScaling | BetaCalibration) or overall.classes != 2:
        return point, precisions
    own = point.copy()
    own[-1] = 0.0
    both = with_coordinates(overall, own)(part.logits.double()).numpy()
    odds, counts = both[:, 1] - both[:, 0], part.example_weights
    if not np.isfinite(odds).all():
        return point, precisions
    labels = part.labels.numpy()
    total = counts.sum()
    target = (counts @ labels + PSEUDO_COUNT) / (total + 2 * PSEUDO_COUNT)

    def excess(intercept: float) -> float:
        return float((counts @ expit(odds + intercept)) / total - target)

    low, high = logit(target) - odds.max() - 1, logit(target) - odds.min() + 1
    own[-1] = brentq(excess, low, high, xtol=1e-12)
    probs = expit(odds + own[-1])
    variance = 1 / (counts @ (probs * (1 - probs)))
    if part.groups is not None:
        scores = np.bincount(part.groups.numpy(), counts * (labels - probs))
        variance = max(variance, float(scores @ scores) * variance**2)
    precisions[-1] = 1 / variance
    return own, precisions
