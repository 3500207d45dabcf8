"""From numbers to places on the page, and which numbers to write along an axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

# A scale is logarithmic where the largest number is more than this many times the smallest.
LOG_FROM = 30


@dataclass(frozen=True)
class Scale:
    """Numbers between `low` and `high` at the places from `start` to `end`.

    Others are put at the nearer end.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a number is."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self, about: int = 5, *, whole: bool = False) -> list[float]:
        """Round numbers along the scale, about so many; only whole ones if asked."""
        return self._powers(about) if self.log else self._even(about, whole)

    def _even(self, about: int, whole: bool) -> list[float]:
        step = _round_step((self.high - self.low) / about)
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(step * at, 12) for at in range(first, last + 1)]

    def _powers(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            found = [f * 10.0**e for e in range(first, last + 1) for f in factors]
            found = [each for each in found if self.low <= each <= self.high]
            if len(found) > 2:
                break
        return found[:: math.ceil(len(found) / (about + 2))] if found else [self.low, self.high]


def _round_step(rough: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return min((f * power for f in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))


def tick_texts(ticks: list[float]) -> list[str]:
    """Ticks as text with equally many decimals; each on its own where they span powers of ten."""
    size = max((abs(each) for each in ticks), default=0.0)
    steps = [b - a for a, b in pairwise(ticks)]
    even = bool(steps) and max(steps) <= min(steps) * (1 + 1e-6)
    if not even or size >= 1e6 or size < 1e-4:
        return [f"{each:,.0f}" if 1000 <= abs(each) < 1e6 else f"{each:.4g}" for each in ticks]
    places = max(0, -math.floor(math.log10(steps[0]) + 1e-9))
    return [f"{each:,.{places}f}" for each in ticks]


def fit_scale(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    zero: bool = False,
    plain: bool = False,
    room: float = 0.06,
) -> Scale:
    """A scale on which all finite values are seen, with some room around them; [0, 1] if none is.

    It is logarithmic where values span powers of ten, unless `plain`. With `zero`, a linear scale
    of positive numbers starts there.
    """
    found = [float(value) for value in values if math.isfinite(value)]
    if not found:
        return Scale(0.0, 1.0, start, end)
    low, high = min(found), max(found)
    if not plain and low > 0 and high > LOG_FROM * low:
        return Scale(low / 1.3, high * 1.3, start, end, log=True)
    from_zero = zero and low >= 0
    margin = room * (high if from_zero else high - low) or room * abs(high) or 1.0
    return Scale(0.0 if from_zero else low - margin, high + margin, start, end)
