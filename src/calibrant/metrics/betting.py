"""Bets against calibration on the windows of a stream, and the wealth they gain or lose.

Functions of wealth also take many streams at once, as leading axes.
"""

import math

import numpy as np
from jaxtyping import Float64
from scipy.special import logit, logsumexp

from calibrant.metrics.bins import BinSums

Wealth = Float64[np.ndarray, "... components bets"]
_SIZES = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
# Alternatives: true logit = logit p + shift, and true logit = (1 + scale) logit p.
SHIFTS = np.concatenate([-_SIZES[::-1], _SIZES])
SCALES = SHIFTS / 3
# Larger bets add little, and exp(bet) multiplies rounding errors of a mean near 1.
LARGEST_BET = 3.0
# Counts beyond are not exact in float64.
LARGEST_COUNT = 2.0**53


def log_growth(sums: BinSums) -> Wealth:
    """Log of the factor by which a window multiplies each bet; 0 for an empty bin."""
    edges = np.asarray(sums.edges)
    centres = logit((edges[1:] + edges[:-1]) / 2)
    scaled = (centres[:, None] * SCALES).clip(-LARGEST_BET, LARGEST_BET)
    count, correct = sums.count[..., None], sums.correct[..., None]
    # Confidences may exceed 1 by rounding.
    mean = (sums.confidence[..., None] / count.clip(1)).clip(0, 1)
    bins, scale = (
        bets * correct - count * np.log1p(mean * np.expm1(bets)) for bets in (SHIFTS, scaled)
    )
    return np.concatenate([bins, bins.sum(-2, keepdims=True), scale.sum(-2, keepdims=True)], -2)


def initial_log_wealth(bins: int) -> Wealth:
    """Log of what each bet gets before the first window."""
    return np.asarray(_log_shares(bins) + _log_stake(0))


def next_log_wealth(log_wealth: Wealth, sums: BinSums, *, windows: int) -> Wealth:
    """Wealth after one more window, and what is added from the reserve for the next one."""
    stake = _log_shares(sums.bins) + _log_stake(windows + 1)
    return np.asarray(np.logaddexp(log_wealth + log_growth(sums), stake))


def total_log_wealth(log_wealth: Wealth, *, windows: int) -> Float64[np.ndarray, "..."]:
    """Log of the wealth of all bets and of the reserve."""
    return np.asarray(
        np.logaddexp(logsumexp(log_wealth, axis=(-2, -1)), -math.log(windows + 2) / 2)
    )


def _log_shares(bins: int) -> Wealth:
    """Split of the stake: a third each for single bins, the shared shift and the scale."""
    rows = np.array([*[1 / bins] * bins, 1, 1]) / (3 * len(SHIFTS))
    return np.log(np.repeat(rows[:, None], len(SHIFTS), axis=1))


def _log_stake(windows: int) -> float:
    """Log of the part of the reserve that is bet after so many windows."""
    # 1 / sqrt(t + 1) - 1 / sqrt(t + 2) without cancellation.
    before, after = math.sqrt(windows + 1), math.sqrt(windows + 2)
    return -math.log(before * after * (before + after))


def checked_window(sums: BinSums, *, edges: tuple[float, ...] | None = None) -> BinSums:
    """Check the sums of one window over fixed bins, of unweighted examples."""
    if sums.edges is None:
        raise ValueError(
            "windows must have fixed bin edges, got equal-mass bins: use BinSums.of(..., bins=15)"
        )
    if edges is not None and sums.edges != edges:
        raise ValueError(
            f"all windows must have the same bin edges, got {len(sums.edges) - 1} other bins, "
            f"not the {len(edges) - 1} of the start"
        )
    arrays = {"count": sums.count, "confidence": sums.confidence, "correct": sums.correct}
    for name, array in arrays.items():
        if array.shape != (len(sums.edges) - 1,):
            raise ValueError(
                f"{name} of a window must be ({len(sums.edges) - 1},), got {array.shape}"
            )
        if not np.isfinite(array).all() or (array < 0).any():
            raise ValueError(f"{name} of a window must be finite and not negative")
    if (sums.count != np.floor(sums.count)).any() or (sums.count > LARGEST_COUNT).any():
        raise ValueError(
            "counts of a window must be integers up to 2 ** 53: weighted examples are refused, "
            "because no bet on them is known to be valid"
        )
    for name, slack in (("confidence", 1e-6), ("correct", 1e-12)):
        over = np.flatnonzero(arrays[name] > sums.count * (1 + slack))
        if len(over):
            at = int(over[0])
            raise ValueError(
                f"{name} of a bin must not exceed its count, "
                f"got {arrays[name][at]:g} of {sums.count[at]:g} in bin {at}"
            )
    return sums


def check_level(level: float) -> float:
    """Check a level of a test: between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return level
