"""Numbers as shades: a table of them, and a surface over two scales."""

import math
from collections.abc import Callable, Sequence

from calibrant.report.charts.axes import Axes
from calibrant.report.charts.svg import chart, element, mark, number_text, text
from calibrant.report.formatting import class_name, shorten

CELL, HIGH = 40.0, 24.0
# The strongest shade: numbers and lines on it must stay readable.
STRONGEST = 0.65
# Characters of a name at the side, and about how wide one is.
NAME = 30
WIDE = 7.2


def table_map(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    notes: Sequence[str] = (),
    highest: float,
    title: str,
) -> str:
    """A number in each field, shaded from 0 to `highest`; NaN leaves a field empty.

    `columns` are classes, named above; `notes` are written below them. Charts to be compared have
    the same `highest`.
    """
    names = [shorten(name, NAME) for name in rows]
    left = 14 + WIDE * max(map(len, names), default=0)
    # Names that are wider than their column are turned.
    heads = [shorten(name, 14) for name in columns]
    longest = max(map(len, heads), default=0)
    turned = longest > 6
    top = 22 + (4.6 * longest if turned else 0)
    parts = []
    if heads and all(name.isdigit() for name in heads):
        parts.append(text(left - 8, top - 7, "class", role="tick", anchor="end", size=11))
    for at, name in enumerate(heads):
        x = left + (at + 0.5) * CELL
        words = text(x, top - 7, name, role="tick", anchor="start" if turned else "middle", size=11)
        if turned:
            words = element("g", words, transform=f"rotate(-40 {x:.1f} {top - 7:.1f})")
        parts.append(words)
    for i, line in enumerate(values):
        y = top + i * HIGH
        parts.append(text(left - 8, y + 16, names[i], role="name", anchor="end"))
        for j, value in enumerate(line):
            tip = f"{rows[i]}, {class_name(columns[j])}"
            parts.append(_field(left + j * CELL, y, value, highest, tip=tip))
    bottom = top + len(rows) * HIGH
    for at, note in enumerate(notes):
        x = left + (at + 0.5) * CELL
        parts.append(text(x, bottom + 15, note, role="tick", anchor="middle", size=11))
    width = left + CELL * len(columns) + (34 if turned else 4)
    height = bottom + (22 if notes else 4)
    return chart(*parts, width=width, height=height, title=title)


def _field(x: float, y: float, value: float, highest: float, *, tip: str) -> str:
    if not math.isfinite(value):
        words = text(x + CELL / 2, y + 16, "-", role="note", anchor="middle", size=11)
        return mark(words, tip=f"{tip}: no value", titled=False)
    written = text(x + CELL / 2, y + 16, f"{value:.3f}", role="value", anchor="middle", size=11)
    position = {"x": x + 1, "y": y + 1, "width": CELL - 2, "height": HIGH - 2}
    shape = element(
        "rect", **position, class_="heat", fill_opacity=f"{_shade(value, 0, highest):g}"
    )
    return mark(shape, written, tip=f"{tip}: {number_text(value)}", titled=False)


def _shade(value: float, low: float, high: float) -> float:
    """How strong the shade of a number is, in steps of a hundredth."""
    part = (value - low) / (high - low) if high > low else 0.0
    return round(STRONGEST * min(max(part, 0.0), 1.0), 2)


def surface(
    axes: Axes,
    values: Sequence[Sequence[float]],
    *,
    x: Sequence[float],
    y: Sequence[float],
    low: float,
    high: float,
    tip: Callable[[int, int], str],
) -> str:
    """A field for each point of a grid (y, x), shaded from `low` to `high`.

    `x` and `y` are the positions of columns and rows; `tip` says what row i and column j hold.
    """
    across, along = axes.x.cuts(x), axes.y.cuts(y)
    parts = []
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            shade = 100 * _shade(value, low, high)
            parts.append(
                element(
                    "rect",
                    x=across[j],
                    y=along[i + 1],
                    width=across[j + 1] - across[j],
                    height=along[i] - along[i + 1],
                    # Opaque: where neighbours overlap on paper, shades would add up to stripes.
                    fill=f"color-mix(in srgb,var(--heat) {shade:g}%,var(--paper))",
                    data_tip=tip(i, j),
                )
            )
    # Smoothed edges would leave seams between neighbours.
    return element("g", *parts, shape_rendering="crispEdges")
