"""Anytime-valid test of calibration: an e-process that is updated window by window."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.metrics.betting import (
    SCALES,
    SHIFTS,
    Wealth,
    check_level,
    checked_window,
    initial_log_wealth,
    next_log_wealth,
    total_log_wealth,
)
from calibrant.metrics.bins import Bins, BinSums, bin_edges

VERSION = 1


@dataclass(frozen=True, eq=False)
class CalibrationEProcess:
    r"""Evidence against calibration, valid whenever you look at it: a test supermartingale.

    Under calibration, $P(y_i = 1 \mid p_i, \text{past}) = p_i$ for every example, the e-value is
    a supermartingale: it is never negative, starts at 1, and no window increases its expectation
    given the past. By Ville's inequality it ever reaches 1/level with probability at most `level`,
    in a stream of any length. So no correction for repeated looks is needed, and monitoring may
    stop or continue at any time.

    A bet $\lambda$ on the n examples of a bin in a window multiplies its wealth by

    $$\exp\Big(\lambda \sum_i y_i - n \log(1 + \bar p\,(e^\lambda - 1))\Big)$$

    This is a valid bet: given $p_i$ and the past, $e^{\lambda y_i}$ has mean
    $m(p_i) = 1 + p_i (e^\lambda - 1)$, so $\prod_i e^{\lambda y_i} / m(p_i)$ has mean 1. And
    $\log m$ is concave, so by Jensen $\sum_i \log m(p_i) \le n \log m(\bar p)$: the factor above is
    never larger than that product. It needs only the sums in `BinSums`, and stays valid for y in
    [0, 1] with mean p, whose $e^{\lambda y}$ has a smaller mean.

    The wealth is spread over bets that are fixed in advance: for a third of it one bin has a shift
    of its logits (`SHIFTS`), for a third all bins share a shift, and for a third the logits of all
    bins are scaled (`SCALES`), as by a temperature. Because a bet loses wealth as long as
    predictions are calibrated, a part of the wealth is kept in reserve, $1/\sqrt{t + 2}$ after
    t windows. What leaves the reserve is bet from the next window on, so drift that starts late is
    detected, too. All stakes add up to 1, and sums of supermartingales are supermartingales.

    A shift of logits below 0.005 is not detected, however many examples there are. A probability of
    exactly 1 with the label 0 multiplies a bet by at most $e^3$. Weighted examples are refused.

    >>> good = BinSums.of_confidence([0.9] * 100, [1] * 90 + [0] * 10)
    >>> bad = BinSums.of_confidence([0.9] * 100, [1] * 75 + [0] * 25)
    >>> process = CalibrationEProcess.start().update(good).update(bad)
    >>> f"{process.e_value:.1f} {process.p_value:.4f} {process.alarm(level=0.05)}"
    '50.6 0.0198 True'

    Attributes:
        edges: edges of the bins, which must stay the same.
        windows: number of windows seen.
        log_wealth: log of the wealth of each bet: a row for each bin, the shared shift, the scale.
        peak: log of the largest e-value so far.

    References:
        Arnold, Henzi and Ziegel, Sequentially valid tests for forecast calibration, Annals of
            Applied Statistics 2023, arXiv:2109.11761
        Ramdas et al., Game-theoretic statistics and safe anytime-valid inference, Statistical
            Science 2023, arXiv:2210.01948
        Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B
            2024, arXiv:2010.09686
        Shin, Ramdas and Rinaldo, E-detectors: a nonparametric framework for sequential change
            detection, NEJSDS 2024, arXiv:2203.03532
    """

    edges: tuple[float, ...]
    windows: int
    log_wealth: Wealth
    peak: float

    @classmethod
    def start(cls, bins: Bins = 15) -> "CalibrationEProcess":
        """An e-process that has seen no windows: its e-value is 1."""
        edges = tuple(bin_edges(bins).tolist())
        return cls(edges, 0, initial_log_wealth(len(edges) - 1), 0.0)

    def update(self, sums: BinSums) -> "CalibrationEProcess":
        """The e-process after one more window, whose examples must be new."""
        checked_window(sums, edges=self.edges)
        log_wealth = next_log_wealth(self.log_wealth, sums, windows=self.windows)
        windows = self.windows + 1
        now = float(total_log_wealth(log_wealth, windows=windows))
        return CalibrationEProcess(self.edges, windows, log_wealth, max(self.peak, now))

    @property
    def log_e_value(self) -> float:
        """Log of the e-value now; finite where the e-value overflows."""
        return float(total_log_wealth(self.log_wealth, windows=self.windows))

    @property
    def e_value(self) -> float:
        """Wealth now, which was 1 at the start: large values are evidence against calibration."""
        return _exp(self.log_e_value)

    @property
    def p_value(self) -> float:
        """Anytime-valid p-value: one over the largest e-value so far, at most 1."""
        return math.exp(-self.peak)

    def alarm(self, level: float = 0.05) -> bool:
        """Whether the e-value ever reached 1/level: false with probability at most `level`."""
        return self.peak >= -math.log(check_level(level))

    @property
    def leading_bet(self) -> str:
        """The alternative with the largest wealth, a hint at what has changed."""
        row, column = divmod(int(self.log_wealth.argmax()), len(SHIFTS))
        bins = len(self.edges) - 1
        if row > bins:
            return f"logits of all bins times {1 + SCALES[column]:.3g}"
        where = "all bins"
        if row < bins:
            where = f"bin ({self.edges[row]:.3g}, {self.edges[row + 1]:.3g}]"
        return f"logits of {where} {SHIFTS[column]:+.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same bits back."""
        return {
            "version": VERSION,
            "edges": list(self.edges),
            "windows": self.windows,
            "peak": self.peak,
            "log_wealth": self.log_wealth.tolist(),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "CalibrationEProcess":
        """Load what `to_dict` saved; treated as untrusted input."""
        names = {"version", "edges", "windows", "peak", "log_wealth"}
        if not isinstance(state, Mapping) or set(state) != names:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"state of an e-process must have {sorted(names)}, got {found}")
        if state["version"] != VERSION:
            raise ValueError(
                f"state of an e-process must have version {VERSION}, got {state['version']!r}: "
                "start a new one"
            )
        edges = _numbers("edges", state["edges"])
        if edges.ndim != 1:
            raise ValueError(f"edges must be a list of numbers, got {state['edges']!r}")
        edges = bin_edges(edges.tolist())
        windows = state["windows"]
        if isinstance(windows, bool) or not isinstance(windows, int) or not 0 <= windows < 2**53:
            raise ValueError(f"windows must be an integer of at least 0, got {windows!r}")
        log_wealth = _numbers("log_wealth", state["log_wealth"])
        shape = (len(edges) + 1, len(SHIFTS))
        if log_wealth.shape != shape:
            raise ValueError(f"log_wealth must have shape {shape}, got {log_wealth.shape}")
        peak = _numbers("peak", state["peak"])
        least = max(0.0, float(total_log_wealth(log_wealth, windows=windows)))
        # Another machine may round the sum differently.
        if peak.shape != () or not peak >= least - 1e-9 * (1 + least):
            raise ValueError(f"peak must be a number of at least {least:g}, got {state['peak']!r}")
        return cls(tuple(edges.tolist()), windows, log_wealth, float(peak))


@dataclass(frozen=True)
class DriftTest:
    """E-values after each window of a stream.

    Attributes:
        log_e_values: log of the e-value after each window.
        first_alarm: index of the first window after which the alarm is on; None if there is none.
        process: the e-process after the last window, which can be updated.
    """

    log_e_values: tuple[float, ...]
    first_alarm: int | None
    process: CalibrationEProcess

    @property
    def e_values(self) -> tuple[float, ...]:
        """E-value after each window; inf where it overflows."""
        return tuple(map(_exp, self.log_e_values))

    @property
    def p_value(self) -> float:
        """Anytime-valid p-value of the whole stream."""
        return self.process.p_value


def drift_test(windows: Sequence[BinSums], *, level: float = 0.05) -> DriftTest:
    """Test a stream of windows, oldest first, for miscalibration at any time.

    A false alarm has probability at most `level` over the whole stream, see `CalibrationEProcess`.
    """
    check_level(level)
    if not windows:
        raise ValueError("need at least 1 window, got none")
    edges = windows[0].edges
    if edges is None:
        checked_window(windows[0])
    process, values, first = CalibrationEProcess.start(edges or 1), [], None
    for position, sums in enumerate(windows):
        process = process.update(sums)
        values.append(process.log_e_value)
        if first is None and process.alarm(level):
            first = position
    return DriftTest(tuple(values), first, process)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def _numbers(name: str, value: Any) -> np.ndarray:
    """Finite float64 numbers of a saved state."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be numbers, got lists of different lengths") from None
    if array.dtype.kind not in "if" or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers")
    return array.astype(np.float64)
