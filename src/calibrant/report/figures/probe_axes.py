"""Axes of the figures of a probe: scales, places, the axis of steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.charts import scales as charts
from calibrant.report.figures.style import (
    INK,
    name_figure,
    new_figure,
    shorten,
    style_axes,
    write_title,
)
from calibrant.report.probe_readings import steps_of
from calibrant.report.readings import Rows, column, has_numbers

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Axes beside one another.
COLUMNS = 3


def by_training(rows: Rows | Mapping[str, Rows], columns: Sequence[str]) -> dict[str, Rows]:
    """Trainings by name, of which at least one column has a number to draw."""
    runs = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    if not finite(runs.values(), columns):
        known = list(dict.fromkeys(key for each in runs.values() for row in each for key in row))
        raise ValueError(f"need readings of a probe with one of {list(columns)}, got {known}")
    return runs


def finite(runs: Iterable[Rows], columns: Iterable[str]) -> list[float]:
    """All finite numbers in some columns."""
    names = list(columns)
    held = [value for rows in runs for name in names for value in column(rows, name)]
    return [value for value in held if np.isfinite(value)]


def fit_scale(
    axes: "matplotlib.axes.Axes",
    which: str,
    values: Sequence[float],
    *,
    zero: bool = False,
    linear: bool = False,
) -> None:
    """Set the scale of the "x" or "y" axis as the charts of the page do: see `charts.scales`."""
    if values:
        scale = charts.fit_scale(values, 0, 1, zero=zero, plain=linear)
        kind = "log" if scale.log else "linear"
        axes.set(**{f"{which}scale": kind, f"{which}lim": (scale.low, scale.high)})


def training_grid(
    runs: Mapping[str, Rows], high: int, title: str
) -> tuple["matplotlib.figure.Figure", list[list[Any]]]:
    """A figure, and the `high` axes of each training, one below the other."""
    columns = min(COLUMNS, len(runs))
    lines = -(-len(runs) // columns)
    figure = new_figure((6.8, 9.0, 11.4)[columns - 1], 1.3 + lines * (2.0 + high))
    ratios = (2.4, 1)[:high] * lines
    grid = figure.subplots(high * lines, columns, squeeze=False, height_ratios=ratios)
    found = grid.reshape(lines, high, columns).swapaxes(1, 2).reshape(-1, high)
    for axes in found.flat:
        style_axes(axes)
    for axes in found[len(runs) :].flat:
        axes.remove()
    for (axes, *_), (label, rows) in zip(found, runs.items(), strict=False):
        if len(runs) == 1:
            write_title(axes, title or label or None, _facts(rows))
        else:
            name = shorten(label, 40)
            axes.set_title(name, loc="left", fontsize=9.5, color=INK, parse_math=False)
    if title and len(runs) > 1:
        name_figure(figure, title)
    return figure, found[: len(runs)].tolist()


def step_axis(axes: "matplotlib.axes.Axes", rows: Rows) -> None:
    """Set up the axis of steps."""
    axes.set_xlabel("step" if has_numbers(column(rows, "step")) else "reading", color=INK)
    axes.locator_params(axis="x", integer=True, nbins=6)
    if len(rows) == 1:
        at = steps_of(rows)[0]
        axes.set_xlim(at - 1, at + 1)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _facts(rows: Rows) -> str:
    """How many readings there are, and at which learning rates."""
    rates = sorted({rate for rate in column(rows, "lr") if np.isfinite(rate)})
    text = f"{len(rows)} reading{'s' if len(rows) != 1 else ''}"
    if rates:
        text += f"    learning rate {rates[-1]:.4g}"
        text += f" to {rates[0]:.4g}" if len(rates) > 1 else ""
    return text
