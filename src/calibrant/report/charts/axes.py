"""Axes of a chart: scales with round ticks, the frame, curves and bands."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from calibrant.report.charts.svg import element, line, rounded, text

# A scale is logarithmic where the largest number is more than this many times the smallest.
LOG_FROM = 30
# Room around the numbers of a linear scale, as a part of their range.
ROOM = 0.06
# Points of a curve; more could not be told apart at its size.
POINTS = 150
Numbers = Sequence[float]


@dataclass(frozen=True)
class Scale:
    """Numbers between `low` and `high` at the positions from `start` to `end`.

    Others are drawn at the nearer bound.
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
        """Round numbers along the scale, about so many; only integers if `whole`."""
        return self._powers(about) if self.log else self._even(about, whole)

    def cuts(self, values: Iterable[float]) -> list[float]:
        """Positions half-way between neighbouring numbers, and the bounds of the scale."""
        between = [(a + b) / 2 for a, b in pairwise(map(self, values))]
        return [self.start, *between, self.end]

    def _even(self, about: int, whole: bool) -> list[float]:
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        round_steps = (f * power for f in (1, 2, 5, 10))
        step = min(round_steps, key=lambda step: abs(math.log(step / rough)))
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


def tick_texts(ticks: list[float]) -> list[str]:
    """Ticks as text with equally many decimals; each on its own where they span powers of ten."""
    size = max((abs(each) for each in ticks), default=0.0)
    steps = [b - a for a, b in pairwise(ticks)]
    even = bool(steps) and max(steps) <= min(steps) * (1 + 1e-6)
    if not even or size >= 1e6 or size < 1e-4:
        return [f"{each:,.0f}" if 1000 <= abs(each) < 1e6 else f"{each:.4g}" for each in ticks]
    decimals = max(0, -math.floor(math.log10(steps[0]) + 1e-9))
    return [f"{each:,.{decimals}f}" for each in ticks]


def fit_scale(
    values: Iterable[float], start: float, end: float, *, zero: bool = False, plain: bool = False
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
    margin = ROOM * (high if from_zero else high - low) or ROOM * abs(high) or 1.0
    return Scale(0.0 if from_zero else low - margin, high + margin, start, end)


@dataclass(frozen=True)
class Axes:
    """Where numbers are: x from left to right, y from the bottom upwards."""

    x: Scale
    y: Scale

    def draw(
        self,
        *,
        x_name: str = "",
        y_name: str = "",
        x_ticks: Numbers | None = None,
        y_ticks: Numbers | None = None,
        x_texts: bool = True,
        y_texts: bool = True,
        whole: bool = False,
    ) -> str:
        """Lines, numbers and names; y has its name above the upper left corner.

        Ticks are round numbers unless given; those of x are integers if `whole`.
        """
        about = max(2, round(abs(self.x.end - self.x.start) / 70))
        xs = list(self.x.ticks(about, whole=whole) if x_ticks is None else x_ticks)
        about = max(2, round(abs(self.y.end - self.y.start) / 36))
        ys = list(self.y.ticks(about) if y_ticks is None else y_ticks)
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = [line(left, self.y(each), right, self.y(each), role="grid") for each in ys]
        parts += [line(self.x(each), bottom, self.x(each), top, role="grid") for each in xs]
        parts.append(line(left, bottom, right, bottom, role="axis"))
        parts.append(line(left, bottom, left, top, role="axis"))
        if x_texts:
            parts += [
                text(self.x(each), bottom + 15, words, role="tick", anchor="middle", size=11)
                for each, words in zip(xs, tick_texts(xs), strict=True)
            ]
        if y_texts:
            parts += [
                text(left - 6, self.y(each) + 4, words, role="tick", anchor="end", size=11)
                for each, words in zip(ys, tick_texts(ys), strict=True)
            ]
        if x_name:
            middle = (left + right) / 2
            parts.append(text(middle, bottom + 31, x_name, role="name", anchor="middle"))
        if y_name:
            parts.append(text(max(2, left - 40), top - 8, y_name, role="name"))
        return "".join(parts)


def thin(values: Numbers, most: int = POINTS) -> list[int]:
    """Positions of at most `most` values: first, last, and the extremes of short segments."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    segments = (most - 2) // 2
    for at in range(segments):
        part = range(at * count // segments, (at + 1) * count // segments)
        real = [position for position in part if math.isfinite(values[position])]
        if real:
            kept |= {min(real, key=lambda i: values[i]), max(real, key=lambda i: values[i])}
        else:
            kept.add(part[0])
    return sorted(kept)


def curve(axes: Axes, x: Numbers, y: Numbers, *, role: str, most: int = POINTS) -> str:
    """A line through the points; it stops where a number is missing, a lone point is a dot."""
    parts, path = [], ""
    for each in _segments(thin(y, most), x, y):
        points = [(axes.x(x[at]), axes.y(y[at])) for at in each]
        if len(each) > 1:
            path += f"M{_joined(points)}"
        else:
            dot, (cx, cy) = role.replace("line", "dot"), points[0]
            parts.append(element("circle", cx=cx, cy=cy, r=2.5, class_=dot))
    if path:
        parts.append(element("path", d=path, class_=role, fill="none"))
    return "".join(parts)


def band(axes: Axes, x: Numbers, low: Numbers, high: Numbers, *, role: str) -> str:
    """The area between two curves, wherever both have a number."""
    area = ""
    for each in _segments(sorted({*thin(low), *thin(high)}), x, low, high):
        if len(each) > 1:
            upper = [(axes.x(x[at]), axes.y(high[at])) for at in each]
            lower = [(axes.x(x[at]), axes.y(low[at])) for at in reversed(each)]
            area += f"M{_joined(upper + lower)}Z"
    return element("path", d=area, class_=role) if area else ""


def _segments(positions: Iterable[int], *columns: Numbers) -> list[list[int]]:
    """Places in a row at which all columns have a number."""
    found: list[list[int]] = [[]]
    for at in positions:
        if all(math.isfinite(column[at]) for column in columns):
            found[-1].append(at)
        elif found[-1]:
            found.append([])
    return [each for each in found if each]


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{rounded(x)},{rounded(y)}" for x, y in points)
