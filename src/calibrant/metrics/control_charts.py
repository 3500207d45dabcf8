"""Control charts of calibration: a z-test of each window, and CUSUM."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import optimize, stats

from calibrant.metrics.betting import check_level, checked_window
from calibrant.metrics.bins import BinSums
from calibrant.shapes import PerBin

Series = Float64[np.ndarray, "... t"]
# Keeps sums of residuals finite where a probability of 1 was wrong.
LARGEST_Z = 1e12


@dataclass(frozen=True)
class ControlChart:
    """A statistic of each window, and the threshold above which it raises an alarm."""

    statistic: tuple[float, ...]
    threshold: float

    @property
    def first_alarm(self) -> int | None:
        """Index of the first window above the threshold; None if there is none."""
        above = (at for at, value in enumerate(self.statistic) if value > self.threshold)
        return next(above, None)


def fixed_window_z(
    windows: Sequence[BinSums],
    *,
    level: float = 0.05,
    looks: int = 1,
    variances: Sequence[PerBin] | None = None,
) -> ControlChart:
    r"""Two-sided z-test of the mean residual of each window; the statistic is |z|.

    $$z = \frac{\sum_i (y_i - p_i)}{\sqrt{\sum_i p_i (1 - p_i)}}$$

    With `looks` = 1 there is no correction: 100 calibrated windows raise about five alarms. With
    the number of planned windows as `looks`, Bonferroni's correction keeps the level over all of
    them. Both rely on the normal approximation, which fails if few errors are expected in a window.

    Args:
        variances: sum of p (1 - p) of each bin and window. Without it the sum is bounded by
            n pbar (1 - pbar) of each bin, which makes |z| slightly too small.
    """
    if looks < 1:
        raise ValueError(f"looks must be at least 1, got {looks}")
    threshold = float(stats.norm.isf(check_level(level) / looks / 2))
    z = np.abs(_residuals(windows, variances))
    return ControlChart(tuple(z.tolist()), threshold)


def cusum(
    windows: Sequence[BinSums],
    *,
    reference: float = 0.5,
    average_run_length: float = 370.0,
    threshold: float | None = None,
    variances: Sequence[PerBin] | None = None,
) -> ControlChart:
    r"""Two-sided CUSUM of the standardised residuals z of the windows.

    $$C^\pm_t = \max(0, C^\pm_{t-1} \pm z_t - k), \qquad \text{alarm if } \max(C^+, C^-) > h$$

    It is fastest for a shift of z by 2k, and needs a threshold h: it is chosen such that calibrated
    windows raise an alarm every `average_run_length` windows. In the long run it always alarms.
    The statistic is not reset after an alarm.

    Args:
        reference: k, half of the shift of z to be detected.
        average_run_length: mean number of windows until a false alarm; `cusum_threshold`.
        threshold: h, in place of an average run length.
        variances: as for `fixed_window_z`.

    References:
        Page, Continuous inspection schemes, Biometrika 1954.
    """
    if threshold is None:
        threshold = cusum_threshold(average_run_length, reference=reference)
    if not (math.isfinite(threshold) and threshold > 0 and reference >= 0):
        raise ValueError(
            f"threshold must be positive and reference at least 0, got {threshold}, {reference}"
        )
    path = cusum_path(_residuals(windows, variances), reference=reference)
    return ControlChart(tuple(path.tolist()), threshold)


def cusum_threshold(average_run_length: float, *, reference: float = 0.5) -> float:
    r"""Threshold h of a two-sided CUSUM with the given average run length on calibrated windows.

    Siegmund's approximation for standard normal z: with $b = h + 1.166$ a side has the run length
    $(e^{2kb} - 2kb - 1) / 2k^2$, and two sides half of it.

    >>> round(cusum_threshold(370), 2)
    4.77

    References:
        Siegmund, Sequential Analysis, Springer 1985.
    """
    if not reference > 0:
        raise ValueError(f"reference must be positive, got {reference}")

    def excess(h: float) -> float:
        exponent = 2 * reference * (h + 1.166)
        return math.log((math.expm1(exponent) - exponent) / (4 * reference**2 * average_run_length))

    highest = 300 / reference
    if not (0 < average_run_length < math.inf and excess(0) < 0 < excess(highest)):
        raise ValueError(
            f"average_run_length must be above {math.exp(excess(0)) * average_run_length:.3g} "
            f"windows and finite, got {average_run_length}"
        )
    return float(optimize.brentq(excess, 0, highest))


def standardised_residual(
    sums: BinSums, variance: PerBin | None = None
) -> Float64[np.ndarray, "..."]:
    """Sum of y - p over its standard deviation under calibration; 0 for an empty window."""
    if variance is None:
        mean = (sums.confidence / sums.count.clip(1)).clip(0, 1)
        variance = sums.count * mean * (1 - mean)
    residual = (sums.correct - sums.confidence).sum(-1)
    spread = np.sqrt(variance.sum(-1))
    # Without variance every label is certain: a residual beyond rounding is a contradiction.
    certain = np.where(np.abs(residual) > 1e-6, np.sign(residual) * LARGEST_Z, 0)
    ratio = residual / np.where(spread > 0, spread, 1)
    return np.asarray(np.where(spread > 0, ratio, certain).clip(-LARGEST_Z, LARGEST_Z))


def cusum_path(z: Series, *, reference: float) -> Series:
    """Larger of both CUSUM statistics after each window, along the last axis."""
    upper = lower = np.zeros(z.shape[:-1])
    path = np.empty(z.shape)
    for t in range(z.shape[-1]):
        upper = np.maximum(0, upper + z[..., t] - reference)
        lower = np.maximum(0, lower - z[..., t] - reference)
        path[..., t] = np.maximum(upper, lower)
    return path


def _residuals(windows: Sequence[BinSums], variances: Sequence[PerBin] | None) -> Series:
    """Standardised residual of each window."""
    if not windows:
        raise ValueError("need at least 1 window, got none")
    if variances is None:
        known: Sequence[PerBin | None] = [None] * len(windows)
    else:
        known = [_checked_variance(variance) for variance in variances]
        if [None if each is None else each.shape for each in known] != [
            window.count.shape for window in windows
        ]:
            raise ValueError(
                "variances must have one array for each window, one value for each bin"
            )
    edges = windows[0].edges
    pairs = zip(windows, known, strict=True)
    return np.array(
        [float(standardised_residual(checked_window(w, edges=edges), v)) for w, v in pairs]
    )


def _checked_variance(variance: PerBin) -> PerBin:
    array = np.asarray(variance, dtype=np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError("variances must be finite and not negative")
    return array
