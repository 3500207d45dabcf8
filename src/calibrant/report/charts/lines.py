"""Curves over a common axis, such as ECE along training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibrant.report.charts.axes import Axes
from calibrant.report.charts.paths import Numbers, band, curve
from calibrant.report.charts.scales import Scale, fit_scale
from calibrant.report.charts.svg import chart, element, hue, line, number_text

# Width of the columns that have a tip of their own: as narrow as one can point at.
COLUMN = 10


@dataclass(frozen=True)
class Series:
    """A named curve with a band; `role` are its classes, else those of its place in the chart."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    role: str = ""


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    about: str = "",
    x_name: str,
    y_name: str = "",
    zero: bool = False,
    plain: bool = False,
    whole: bool = True,
    x_ends: tuple[float, float] | None = None,
    guides: Numbers = (),
    y_scale: Scale | None = None,
    width: float = 360,
    height: float = 240,
) -> str:
    """Curves with their bands over a common axis.

    The y axis starts at 0 if `zero`, is never logarithmic if `plain`, and can be given as
    `y_scale`; `guides` are dashed horizontal lines. x has integer ticks if `whole`.
    """
    left, right = 46.0, width - 12
    top, bottom = (24.0 if y_name else 10.0), height - (38 if x_name else 22)
    across = x_ends or [value for each in series for value in each.x]
    ends = [v for each in series for part in (each.y, each.low, each.high) for v in part or ()]
    y = y_scale or fit_scale([*ends, *guides], 0, 1, zero=zero, plain=plain)
    axes = Axes(_across(across, left, right), Scale(y.low, y.high, bottom, top, log=y.log))
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
    hits = columns(axes, series, lambda x: f"{x_name} {number_text(x)}")
    return chart(
        *parts, *bands, *curves, hits, width=width, height=height, title=title, about=about
    )


def columns(axes: Axes, series: Sequence[Series], head: Callable[[float], str]) -> str:
    """Invisible columns that say what all curves are at a place."""
    by_place: dict[float, list[str]] = {}
    for each in series:
        for i, x in enumerate(each.x):
            if math.isfinite(x) and math.isfinite(each.y[i]):
                by_place.setdefault(x, []).append(_point_text(each, i))
    places = sorted(by_place)
    most = max(2, int((axes.x.end - axes.x.start) / COLUMN))
    step = max(1, math.ceil(len(places) / most))
    # The last place is what most readers want to know.
    places = places[::-1][::step][::-1]
    found = []
    for at, x in enumerate(places):
        start = axes.x.start if at == 0 else (axes.x(places[at - 1]) + axes.x(x)) / 2
        end = axes.x.end if at == len(places) - 1 else (axes.x(x) + axes.x(places[at + 1])) / 2
        found.append(
            element(
                "rect",
                x=start,
                y=axes.y.end,
                width=end - start,
                height=axes.y.start - axes.y.end,
                class_="hit",
                data_tip="\n".join([head(x), *by_place[x]]),
            )
        )
    return element("g", *found, fill="none", pointer_events="all") if found else ""


def _point_text(series: Series, at: int) -> str:
    words = (
        f"{series.name}: {number_text(series.y[at])}" if series.name else number_text(series.y[at])
    )
    if series.low is None or series.high is None or series.low[at] == series.high[at]:
        return words
    return f"{words} ({number_text(series.low[at])} to {number_text(series.high[at])})"


def _across(values: Numbers, start: float, end: float) -> Scale:
    """A scale from the first to the last place, without room about them."""
    found = [float(value) for value in values if math.isfinite(value)]
    if not found:
        return Scale(0.0, 1.0, start, end)
    low, high = min(found), max(found)
    room = 1.0 if low == high else 0.0
    return Scale(low - room, high + room, start, end)
