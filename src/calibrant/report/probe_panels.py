"""Parts that figures of a probe's readings share: columns, scales and panels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.charts.scales import LOG_FROM
from calibrant.report.panels import INK, dress, head, new_figure, shorten
from calibrant.shapes import Values

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Rows = Sequence[Mapping[str, Any]]

# Panels beside one another.
COLUMNS = 3


def named(rows: Rows | Mapping[str, Rows], columns: Sequence[str]) -> dict[str, Rows]:
    """Trainings by name, in which at least one of the columns has a number to draw."""
    runs = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    if not runs or not numbers(runs.values(), columns).size:
        known = list(dict.fromkeys(key for each in runs.values() for row in each for key in row))
        raise ValueError(f"need readings of a probe with one of {list(columns)}, got {known}")
    return runs


def array_of(rows: Rows, name: str) -> Values:
    """Readings of one name, NaN where a row has none."""
    return np.array([row.get(name, np.nan) for row in rows], dtype=np.float64)


def steps_of(rows: Rows) -> Values:
    """Steps at which was read, or the number of the reading where rows have none."""
    steps = array_of(rows, "step")
    return steps if np.isfinite(steps).all() else np.arange(len(rows), dtype=np.float64)


def fit(
    axes: "matplotlib.axes.Axes",
    which: str,
    values: Values,
    *,
    zero: bool = False,
    plain: bool = False,
) -> None:
    """Scale and range of an axis, the same for all panels.

    Args:
        axes: in which the values are drawn.
        which: "x" or "y".
        values: all that must be seen.
        zero: start a plain scale of positive numbers there.
        plain: never logarithmic.
    """
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    if not plain and low > 0 and high > LOG_FROM * low:
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low / 1.3, 1.3 * high)})
        return
    from_zero = zero and low >= 0
    room = 0.06 * (high if from_zero else high - low) or 0.06 * abs(high) or 1.0
    axes.set(**{f"{which}lim": (0 if from_zero else low - room, high + room)})


def numbers(runs: Iterable[Rows], columns: Iterable[str]) -> Values:
    """All finite numbers in some columns."""
    found = np.concatenate([array_of(rows, name) for rows in runs for name in columns])
    return np.asarray(found[np.isfinite(found)])


def places(
    runs: Mapping[str, Rows], high: int, title: str
) -> tuple["matplotlib.figure.Figure", list[list[Any]]]:
    """A figure and for each training its axes, one or two of which the lower one is low."""
    columns = min(COLUMNS, len(runs))
    lines = -(-len(runs) // columns)
    figure = new_figure((6.8, 9.0, 11.4)[columns - 1], 1.3 + lines * (2.0 + high))
    ratios = (2.4, 1)[:high] * lines
    grid = figure.subplots(high * lines, columns, squeeze=False, height_ratios=ratios)
    found = grid.reshape(lines, high, columns).swapaxes(1, 2).reshape(-1, high)
    for axes in found.flat:
        dress(axes)
    for axes in found[len(runs) :].flat:
        axes.remove()
    for (axes, *_), (label, rows) in zip(found, runs.items(), strict=False):
        if len(runs) == 1:
            head(axes, title or label or None, facts(rows))
        else:
            name = shorten(label, 40)
            axes.set_title(name, loc="left", fontsize=9.5, color=INK, parse_math=False)
    if title and len(runs) > 1:
        text = figure.suptitle(shorten(title, 90), x=0.01, ha="left", fontsize=11.5, color=INK)
        text.set(fontweight="bold", parse_math=False)
    return figure, found[: len(runs)].tolist()


def along(axes: "matplotlib.axes.Axes", rows: Rows) -> None:
    """The axis of steps."""
    has_steps = np.isfinite(array_of(rows, "step")).all()
    axes.set_xlabel("step" if has_steps else "reading", color=INK)
    axes.locator_params(axis="x", integer=True, nbins=6)
    if len(rows) == 1:
        at = float(steps_of(rows)[0])
        axes.set_xlim(at - 1, at + 1)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def facts(rows: Rows) -> str:
    """How many readings there are, and of what learning rate."""
    rates = array_of(rows, "lr")
    rates = np.unique(rates[np.isfinite(rates)])
    text = f"{len(rows)} reading{'s' if len(rows) != 1 else ''}"
    if rates.size:
        text += f"    learning rate {rates[-1]:.4g}"
        text += f" to {rates[0]:.4g}" if rates.size > 1 else ""
    return text
