"""Points: of several parts for each name, and of pairs of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.charts.axes import Axes
from calibrant.report.charts.paths import curve
from calibrant.report.charts.scales import Scale, fit_scale
from calibrant.report.charts.svg import chart, element, line, mark, number_text, text
from calibrant.report.formatting import shorten

ROW = 24.0


@dataclass(frozen=True)
class Dot:
    """One number with the ends of its interval, NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan


def dot_rows(
    rows: Sequence[tuple[str, Sequence[Dot]]],
    *,
    parts: Sequence[str],
    x_name: str,
    title: str,
    about: str = "",
    zero: bool = True,
    width: float = 360,
) -> str:
    """A row of dots with their intervals for each name: one colour for each of the parts."""
    names = [shorten(name, 26) for name, _ in rows]
    left = 14 + 7.2 * max((len(name) for name in names), default=0)
    top, bottom = 8.0, 8.0 + ROW * len(rows)
    ends = [v for _, dots in rows for dot in dots for v in (dot.value, dot.low, dot.high)]
    x = fit_scale(ends, left, width - 14, zero=zero, plain=True)
    y = Scale(0, 1, bottom, top)
    drawn = [Axes(x, y).draw(x_name=x_name, y_ticks=(), y_texts=False)]
    for at, ((name, dots), short) in enumerate(zip(rows, names, strict=True)):
        middle = top + (at + 0.5) * ROW
        drawn.append(text(left - 8, middle + 4, short, role="name", anchor="end"))
        drawn.append(line(left, middle, width - 14, middle, role="grid"))
        for place, dot in enumerate(dots):
            # Beside one another, so that equal numbers do not hide each other.
            y_dot = middle + 5 * (place - (len(dots) - 1) / 2)
            drawn.append(_dot(x, y_dot, dot, place, f"{name}, {parts[place]}"))
    return chart(*drawn, width=width, height=bottom + 38, title=title, about=about)


def _dot(x: Scale, y: float, dot: Dot, place: int, name: str) -> str:
    if not math.isfinite(dot.value):
        return ""
    look = f"s{place % 8 + 1}"
    tip, shapes = f"{name}: {number_text(dot.value)}", []
    if dot.low < dot.high:
        tip += f" ({number_text(dot.low)} to {number_text(dot.high)})"
        shapes.append(line(x(dot.low), y, x(dot.high), y, role=f"line {look}"))
    shapes.append(element("circle", cx=x(dot.value), cy=y, r=4, class_=f"dot {look}"))
    return mark(*shapes, tip=tip)


def scatter(
    x: Sequence[float],
    y: Sequence[float],
    tips: Sequence[str],
    *,
    x_name: str,
    y_name: str,
    title: str,
    about: str = "",
    shades: Sequence[float] | None = None,
    joined: bool = False,
    zero: bool = False,
    plain_y: bool = False,
    width: float = 360,
    height: float = 240,
) -> str:
    """Pairs of numbers as points, each with a tip.

    `shades` from 0 to 1 say how strong each point is; `joined` draws a line through them.
    """
    pairs = [at for at in range(len(x)) if math.isfinite(x[at]) and math.isfinite(y[at])]
    axes = Axes(
        fit_scale([x[at] for at in pairs], 46, width - 12),
        fit_scale([y[at] for at in pairs], height - 38, 24, zero=zero, plain=plain_y),
    )
    parts = [axes.draw(x_name=x_name, y_name=y_name)]
    if joined:
        parts.append(curve(axes, x, y, role="line all", most=10 * len(x)))
    for at in pairs:
        dot = element(
            "circle",
            cx=axes.x(x[at]),
            cy=axes.y(y[at]),
            r=4,
            class_="dot s1",
            fill_opacity=None if shades is None else f"{0.2 + 0.8 * shades[at]:.2f}",
        )
        parts.append(mark(dot, tip=tips[at]))
    return chart(*parts, width=width, height=height, title=title, about=about)
