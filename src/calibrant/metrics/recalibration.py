"""Slope and intercept of logistic recalibration, for two classes."""

import math

import numpy as np
from jaxtyping import Float64

from calibrant.metrics.binary import positive_values
from calibrant.metrics.metric import Statistic, at_own_weights
from calibrant.predictions import Predictions
from calibrant.shapes import Values

# Newton steps of the recalibration model, and the step after which the next is below rounding.
STEPS, SMALL = 50, 1e-7
# More examples than this are fitted in two stages.
MANY = 200_000
# Examples of one chunk, which stay in cache.
ROWS = 1 << 15

Pair = Float64[np.ndarray, "2"]  # intercept and slope


def calibration_slope(predictions: Predictions) -> float:
    r"""Slope b of the logistic recalibration model: below 1, probabilities are too extreme.

    $$\mathrm{logit} P(y = 1) = a + b \, \mathrm{logit}(p)$$

    Fitted by maximum likelihood; 1 if calibrated. Infinite if the score separates the labels, NaN
    if all labels are equal. Examples with a masked class take no part. Given probabilities of 0 and
    1 have no finite odds: they are replaced as in a fit, see `Predictions.estimated_zero_floor`.

    References:
        Cox, Two Further Applications of a Model for Binary Regression, Biometrika 1958.
    """
    return at_own_weights(predictions, recalibration_statistic(predictions, slope=True))


def calibration_intercept(predictions: Predictions) -> float:
    r"""Intercept a of the recalibration model with slope 1: below zero, over-predicted positives.

    $$\mathrm{logit} P(y = 1) = a + \mathrm{logit}(p)$$

    The log-odds by which all predictions are off: 0 if calibrated, infinite if all labels are
    equal.
    """
    return at_own_weights(predictions, recalibration_statistic(predictions, slope=False))


def recalibration_statistic(predictions: Predictions, *, slope: bool) -> Statistic:
    """Prepare the slope, or the intercept at slope 1, for resampling: Newton from the own fit."""
    odds = predictions.floored_log_odds.numpy()
    # Nothing can change the probability of a masked class.
    kept = np.isfinite(odds)
    odds, positive = odds[kept], positive_values(predictions)[1][kept]
    start = np.array([0.0, 1.0])

    def fitted(weights: Values, start: Pair) -> Pair:
        own = weights[kept]
        limit = _limit(odds, positive, own, slope=slope)
        if limit is not None:
            return np.array([limit, limit])
        return _recalibrated(odds, positive, own, start, slope=slope)

    if len(odds) <= MANY:
        own = fitted(predictions.example_weights, start)
        start = own if np.isfinite(own).all() else start
    return lambda weights: float(fitted(weights, start)[int(slope)])


def _limit(odds: Values, positive: Values, weights: Values, *, slope: bool) -> float | None:
    """Where the likelihood has no maximum: the infinite or undefined solution; else None."""
    used = weights > 0
    ones, zeros = odds[used & (positive > 0)], odds[used & (positive == 0)]
    if not len(ones) or not len(zeros):
        return math.nan if slope else math.inf if len(ones) else -math.inf
    if not slope:
        return None
    if ones.min() >= zeros.max():
        return math.nan if ones.max() == zeros.min() else math.inf
    return -math.inf if zeros.min() >= ones.max() else None


def _recalibrated(
    odds: Values, positive: Values, weights: Values, start: Pair, *, slope: bool
) -> Pair:
    """Intercept and slope of maximum likelihood; the slope is 1 unless it is fitted."""
    at, step, best = start, np.zeros(2), math.inf
    if len(odds) > MANY:
        # A tenth of the examples leads close to the solution.
        part = slice(None, None, 10)
        if _limit(odds[part], positive[part], weights[part], slope=slope) is None:
            at = _recalibrated(odds[part], positive[part], weights[part], start, slope=slope)
    for _ in range(STEPS):
        loss, gradient, matrix = _derivatives(odds, positive, weights, at)
        if loss > best + 1e-9 * abs(best):
            step = step / 2
            at = at - step
            continue
        best = loss
        size = 1 + int(slope)
        step = np.zeros(2)
        step[:size] = np.linalg.lstsq(matrix[:size, :size], gradient[:size])[0]
        at = at + step
        if np.abs(step).max() < SMALL * max(1.0, float(np.abs(at).max())):
            break
    return at


def _derivatives(
    odds: Values, positive: Values, weights: Values, at: Pair
) -> tuple[float, Pair, Float64[np.ndarray, "2 2"]]:
    """Log loss of the recalibrated odds, its negative gradient and its Hessian, in one pass."""
    total = np.zeros(6)
    for start in range(0, len(odds), ROWS):
        part = slice(start, start + ROWS)
        own, happened, weight = odds[part], positive[part], weights[part]
        linear = at[0] + at[1] * own
        # One exponential for the loss and the probability; it cannot overflow.
        small = np.exp(-np.abs(linear))
        probs = np.where(linear >= 0, 1.0, small) / (1 + small)
        loss = np.maximum(linear, 0) + np.log1p(small) - happened * linear
        error, curvature = weight * (happened - probs), weight * probs * (1 - probs)
        cross = curvature * own
        total += [
            weight @ loss,
            error.sum(),
            error @ own,
            curvature.sum(),
            cross.sum(),
            cross @ own,
        ]
    matrix = np.array([[total[3], total[4]], [total[4], total[5]]])
    return float(total[0]), total[1:3], matrix
