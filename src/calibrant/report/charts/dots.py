"""Points: of several parts for each name, and of pairs of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.charts.axes import Axes, Numbers, Scale, curve, fit_scale
from calibrant.report.charts.svg import chart, element, line, mark, number_text, text
from calibrant.report.formatting import shorten

ROW, WIDTH = 24.0, 360.0


@dataclass(frozen=True)
class Dot:
    """One number with the bounds of its interval, NaN where there is none."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


def dot_rows(
    rows: Sequence[tuple[str, Sequence[Dot]]], *, parts: Sequence[str], x_name: str, title: str
) -> str:
    """A row of dots with their intervals for each name: one colour for each of the parts."""
    names = [shorten(name, 26) for name, _ in rows]
    left, right = 14 + 7.2 * max(map(len, names), default=0), WIDTH - 14
    top, bottom = 8.0, 8.0 + ROW * len(rows)
    bounds = [v for _, dots in rows for dot in dots for v in (dot.value, dot.low, dot.high)]
    x = fit_scale(bounds, left, right, zero=True, plain=True)
    drawn = [Axes(x, Scale(0, 1, bottom, top)).draw(x_name=x_name, y_ticks=())]
    for at, ((name, dots), short) in enumerate(zip(rows, names, strict=True)):
        middle = top + (at + 0.5) * ROW
        drawn.append(text(left - 8, middle + 4, short, role="name", anchor="end"))
        drawn.append(line(left, middle, right, middle, role="grid"))
        for position, dot in enumerate(dots):
            # Beside one another, so that equal numbers do not hide each other.
            y_dot = middle + 5 * (position - (len(dots) - 1) / 2)
            drawn.append(_dot(x, y_dot, dot, f"s{position % 8 + 1}", f"{name}, {parts[position]}"))
    return chart(*drawn, width=WIDTH, height=bottom + 38, title=title)


def _dot(x: Scale, y: float, dot: Dot, look: str, name: str) -> str:
    if not math.isfinite(dot.value):
        return ""
    tip, shapes = f"{name}: {number_text(dot.value)}", []
    if dot.low < dot.high:
        tip += f" ({number_text(dot.low)} to {number_text(dot.high)})"
        shapes.append(line(x(dot.low), y, x(dot.high), y, role=f"line {look}"))
    shapes.append(element("circle", cx=x(dot.value), cy=y, r=4, class_=f"dot {look}"))
    return mark(*shapes, tip=tip)


def interval_dots(
    dots: Sequence[tuple[Dot, Dot, str, str]],
    *,
    x_name: str,
    y_name: str,
    title: str,
    about: str = "",
) -> str:
    """Pairs of numbers with the intervals of both: x, y, classes of the dot, and its tip."""
    x, y = (
        fit_scale([v for dot in part for v in (dot.value, dot.low, dot.high)], *bounds, plain=True)
        for part, bounds in (
            ([each[0] for each in dots], (46.0, WIDTH - 12)),
            ([each[1] for each in dots], (WIDTH - 38, 24.0)),
        )
    )
    parts = [Axes(x, y).draw(x_name=x_name, y_name=y_name)]
    for across, up, look, tip in dots:
        if not math.isfinite(across.value + up.value):
            continue
        at, height, shapes = x(across.value), y(up.value), []
        if across.low < across.high:
            bounds = x(across.low), x(across.high)
            shapes.append(line(bounds[0], height, bounds[1], height, role="whisker faint"))
        if up.low < up.high:
            shapes.append(line(at, y(up.low), at, y(up.high), role="whisker faint"))
        shapes.append(element("circle", cx=at, cy=height, r=5, class_=look))
        parts.append(mark(*shapes, tip=tip))
    return chart(*parts, width=WIDTH, height=WIDTH, title=title, about=about)


def scatter(
    x: Numbers,
    y: Numbers,
    tips: Sequence[str],
    *,
    x_name: str,
    y_name: str,
    title: str,
    about: str = "",
    shades: Numbers | None = None,
    zero: bool = False,
    width: float = WIDTH,
    height: float = 240,
) -> str:
    """Pairs of numbers as points, each with a tip.

    With `shades` from 0 to 1, which say how strong each point is, a line joins them. With `zero`
    the y axis starts there and is never logarithmic.
    """
    pairs = [at for at in range(len(x)) if math.isfinite(x[at]) and math.isfinite(y[at])]
    axes = Axes(
        fit_scale([x[at] for at in pairs], 46, width - 12),
        fit_scale([y[at] for at in pairs], height - 38, 24, zero=zero, plain=zero),
    )
    parts = [axes.draw(x_name=x_name, y_name=y_name)]
    if shades is not None:
        parts.append(curve(axes, x, y, role="line all", most=10 * len(x)))
    for at in pairs:
        shade = None if shades is None else f"{0.2 + 0.8 * shades[at]:.2f}"
        position = {"cx": axes.x(x[at]), "cy": axes.y(y[at]), "r": 4}
        dot = element("circle", **position, class_="dot s1", fill_opacity=shade)
        parts.append(mark(dot, tip=tips[at]))
    return chart(*parts, width=width, height=height, title=title, about=about)
