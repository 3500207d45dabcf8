"""Curves over a common axis, such as ECE along training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.charts.axes import Axes, Numbers, Scale, band, curve, fit_scale
from calibrant.report.charts.svg import chart, element, hue, line, number_text

# Width of the columns that have a tip of their own: as narrow as one can point at.
COLUMN = 10


@dataclass(frozen=True)
class Series:
    """A named curve with a band; `role` are its classes, else those of its position."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    role: str = ""

    def point_text(self, at: int) -> str:
        """One point with its interval, in words."""
        words = f"{self.name}: {number_text(self.y[at])}".removeprefix(": ")
        if self.low is None or self.high is None or self.low[at] == self.high[at]:
            return words
        return f"{words} ({number_text(self.low[at])} to {number_text(self.high[at])})"


def line_chart(
    series: Sequence[Series],
    title: str,
    x_name: str,
    *,
    about: str = "",
    y_name: str = "",
    zero: bool = False,
    plain: bool = False,
    whole: bool = True,
    x_bounds: Numbers = (),
    y_bounds: Numbers = (),
    guides: Numbers = (),
    width: float = 360,
    height: float = 240,
) -> str:
    """Curves with their bands over a common axis.

    The y axis starts at 0 if `zero`, is never logarithmic if `plain`, and includes `y_bounds`;
    `guides` are dashed horizontal lines. x has integer ticks if `whole`.
    """
    left, right = 46.0, width - 12
    top, bottom = (24.0 if y_name else 10.0), height - (38 if x_name else 22)
    across = [v for v in x_bounds or (v for each in series for v in each.x) if math.isfinite(v)]
    low, high = min(across, default=0.0), max(across, default=1.0)
    room = 1.0 if low == high else 0.0
    bounds = [v for each in series for part in (each.y, each.low, each.high) for v in part or ()]
    axes = Axes(
        Scale(low - room, high + room, left, right),
        fit_scale([*bounds, *y_bounds, *guides], bottom, top, zero=zero, plain=plain),
    )
    parts = [axes.draw(x_name=x_name, y_name=y_name, whole=whole)]
    parts += [line(left, axes.y(each), right, axes.y(each), role="guide") for each in guides]
    bands, curves = [], []
    for at, each in enumerate(series):
        look = each.role or hue(at)
        tag = {"data_series": str(at)}
        if each.low is not None and each.high is not None:
            shade = band(axes, each.x, each.low, each.high, role=f"band {look}")
            bands.append(element("g", shade, **tag) if shade else "")
        drawn = curve(axes, each.x, each.y, role=f"line {look}")
        curves.append(element("g", drawn, **tag) if drawn else "")
    hits = _columns(axes, series, x_name)
    return chart(
        *parts, *bands, *curves, hits, width=width, height=height, title=title, about=about
    )


def _columns(axes: Axes, series: Sequence[Series], x_name: str) -> str:
    """Invisible columns that say what all curves are at a position."""
    by_position: dict[float, list[str]] = {}
    for each in series:
        for at, x in enumerate(each.x):
            if math.isfinite(x) and math.isfinite(each.y[at]):
                by_position.setdefault(x, []).append(each.point_text(at))
    positions = sorted(by_position)
    most = max(2, int((axes.x.end - axes.x.start) / COLUMN))
    step = max(1, math.ceil(len(positions) / most))
    # The last position is what most readers want to know.
    positions = positions[::-1][::step][::-1]
    cuts = axes.x.cuts(positions)
    high = axes.y.start - axes.y.end
    found = [
        element(
            "rect",
            x=cuts[at],
            y=axes.y.end,
            width=cuts[at + 1] - cuts[at],
            height=high,
            class_="hit",
            data_tip="\n".join([f"{x_name} {number_text(x)}", *by_position[x]]),
        )
        for at, x in enumerate(positions)
    ]
    return element("g", *found, fill="none", pointer_events="all") if found else ""
