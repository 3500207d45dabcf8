r"""Empirical Bayes: shrink the parameters of many fits towards those of one.

The parameters $\hat\theta_s$ of a slice are those of the slice and noise,

$$\hat\theta_s \sim N(\theta_s, v_s), \qquad \theta_s \sim N(\theta, \tau^2),$$

so their posterior mean is $\theta + w_s (\hat\theta_s - \theta)$ with
$w_s = \tau^2 / (\tau^2 + v_s)$. Each parameter is shrunk on its own.

References:
    Paule and Mandel, Consensus values and weighting factors, J. Res. NBS, 1982: tau.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import brentq
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.predictions import Predictions
from calibrant.shapes import Values

Matrix = Float64[np.ndarray, "m d"]

# Parameters that must stay positive are averaged as logarithms.
LOGARITHMIC = ("temperature",)
# Of derivatives, divided by the size of the logits.
STEP = 1e-6
# Derivatives (rows times classes times parameters) held at once.
ELEMENTS = 1 << 22
# Relative curvature below which a direction has none: a constant added to every bias.
FLAT = 1e-10


def coordinates(calibrator: Calibrator) -> Values:
    """The parameters as a flat vector in which they may be averaged, (d,)."""
    parts = [
        [math.log(value)] if name in LOGARITHMIC else np.ravel(value)
        for name, value in calibrator.parameters.items()
    ]
    return np.concatenate(parts).astype(np.float64)


def with_coordinates(calibrator: Calibrator, point: Values) -> Calibrator:
    """The same kind of calibrator with the parameters of a point."""
    changed: dict[str, Any] = {}
    start = 0
    for name, value in calibrator.parameters.items():
        size = value.numel() if isinstance(value, Tensor) else 1
        part = point[start : start + size]
        start += size
        if isinstance(value, Tensor):
            changed[name] = torch.from_numpy(part.copy()).reshape(value.shape)
        else:
            # Beyond the largest float a calibrator refuses its parameter.
            with np.errstate(over="ignore"):
                changed[name] = float(np.exp(part[0]) if name in LOGARITHMIC else part[0])
    return replace(calibrator, **changed)


def variances(calibrator: Calibrator, predictions: Predictions) -> Values:
    r"""Sampling variance of each parameter of a fit, (d,); 0 if the examples do not determine it.

    The diagonal of the inverse Fisher information

    $$F = \sum_i n_i \sum_j q_{ij} \nabla \log q_{ij} \nabla \log q_{ij}^\top$$

    with weights $n_i$ as counts, which is the curvature of the NLL if the calibrator is right.
    With groups it is at least the sandwich estimate, in which examples of a group are dependent.
    """
    logits, labels = predictions.logits.double(), predictions.labels
    counts = torch.from_numpy(predictions.example_weights).double()
    point = coordinates(calibrator)
    finite = logits[logits > -torch.inf]
    step = STEP / max(1.0, float(finite.square().mean().sqrt()))
    moved = [with_coordinates(calibrator, point + step * unit) for unit in np.eye(len(point))]
    information = torch.zeros(len(point), len(point), dtype=torch.float64)
    groups = predictions.groups
    count = 0 if groups is None else int(groups.max()) + 1
    scores = torch.zeros(count, len(point), dtype=torch.float64)
    rows = max(1, ELEMENTS // (len(point) * logits.shape[1]))
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        base = calibrator(logits[part])
        gradients = torch.stack([(each(logits[part]) - base) / step for each in moved], -1)
        gradients = torch.where((base > -torch.inf)[..., None], gradients, 0.0)
        rooted = (gradients * (base.exp() * counts[part][:, None]).sqrt()[..., None]).flatten(0, 1)
        information += rooted.T @ rooted
        if groups is not None:
            own = gradients[torch.arange(len(base)), labels[part]] * counts[part][:, None]
            scores.index_add_(0, groups[part], own)
    inverse = np.linalg.pinv(information.numpy(), rcond=FLAT, hermitian=True)
    found = np.diag(inverse)
    if groups is not None:
        found = np.maximum(found, ((scores.numpy() @ inverse) ** 2).sum(0))
    return np.where(np.isfinite(found) & (found > 0), found, 0.0)


def between_variance(gaps: Values, own: Values) -> float:
    r"""Variance $\tau^2$ of the true differences to the centre, by Paule and Mandel.

    It solves $\sum_s g_s^2 / (v_s + \tau^2) = m - 1$ for m slices, and is 0 if their differences
    are no larger than their sampling noise.

    Args:
        gaps: estimated differences, (m,).
        own: their sampling variances, (m,), positive.

    Examples:
        >>> round(between_variance(np.array([1.0, -1.0]), np.array([0.5, 0.5])), 6)
        1.5
        >>> between_variance(np.array([0.1, -0.1]), np.array([0.5, 0.5]))
        0.0
    """
    left = len(gaps) - 1

    def excess(variance: float) -> float:
        return float((gaps**2 / (own + variance)).sum()) - left

    if left < 1 or excess(0.0) <= 0:
        return 0.0
    highest = float((gaps**2).sum()) / left
    return float(brentq(excess, 0.0, highest, xtol=1e-14 * highest, rtol=1e-13))


def alone(precisions: Matrix) -> np.ndarray:
    """Where one parameter of several has an own estimate: an intercept, (m, d)."""
    known = precisions > 0
    return np.asarray(known & (known.sum(1, keepdims=True) == 1) & (precisions.shape[1] > 1))


def shrinkage_weights(tau: Values, precisions: Matrix, gaps: Matrix) -> Matrix:
    r"""Weights of the own estimates, (m, d), from tau, (d,), and 1 / v, (m, d): 0 without one.

    An intercept that is estimated alone, of a slice with too few examples of one class, stays
    within one standard error of its estimate however small $\tau$ is. `gaps` are the differences
    of the estimates to the centre, (m, d).

    References:
        Efron and Morris, Limiting the risk of Bayes and empirical Bayes estimators, JASA, 1972.
    """
    information = tau**2 * precisions
    weights = information / (1 + information)
    errors = np.abs(gaps) * np.sqrt(precisions)
    least = 1 - 1 / np.maximum(errors, 1)
    return np.asarray(np.where(alone(precisions), np.maximum(weights, least), weights))
