"""Calibration error against sharpness, reading by reading."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.curvature.correlation import Kind, correlations
from calibrant.report.figures.probe_axes import by_training, fit_scale
from calibrant.report.figures.style import (
    INK,
    MARKERS,
    SERIES,
    SOFT,
    legend_below,
    new_figure,
    shorten,
    style_axes,
    write_title,
)
from calibrant.report.probe_readings import ECE, correlation_text, interval_text, pairs_of, steps_of
from calibrant.report.readings import Rows, column

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

NAMES = {
    "gauss_newton": "Gauss-Newton sharpness",
    "hessian": "Hessian sharpness",
    "batch_sharpness": "batch sharpness",
    "trace": "Gauss-Newton trace",
}
SIGNS: dict[Kind, str] = {"pearson": "r", "spearman": "rho"}
EXPLAINED = "r: Pearson, rho: Spearman, each with its 95 % interval"


def scatter_figure(
    rows: Rows | Mapping[str, Rows], *, against: str = "gauss_newton", title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw each reading's calibration error against its sharpness, with their correlation.

    Readings of one training are coloured by step and joined in their order; of several, each has
    its own colour, and early readings are faint. Correlations are those of the numbers themselves
    also where a scale is logarithmic. Their intervals are by `curvature.correlation`, those of a
    mean over trainings by `curvature.correlations`.

    Args:
        rows: of a probe; of several trainings by name.
        against: column of the sharpness: "gauss_newton", "hessian", "batch_sharpness", "trace".
        title: above the figure.
    """
    runs = by_training(rows, (against,))
    together = [row for each in runs.values() for row in each]
    pairs = {name: pairs_of(together, against, name)[1:] for name in ECE}
    shown = {name: both for name, both in pairs.items() if both[0]}
    if not shown:
        raise ValueError(f"no reading has both {against} and one of {list(ECE)}")
    alone = len(runs) == 1
    figure = new_figure(1.2 + 4.8 * len(shown), 4.2 + (0 if alone else 0.2 * len(runs)))
    grid = figure.subplots(1, len(shown), squeeze=False)[0].tolist()
    for axes, (name, both) in zip(grid, shown.items(), strict=True):
        style_axes(axes)
        draw = _draw_path if alone else _draw_points
        drawn = [draw(axes, each, name, against, at) for at, each in enumerate(runs.values())]
        for which, values in zip("xy", both, strict=True):
            fit_scale(axes, which, values)
        axes.set_xlabel(NAMES.get(against, against), color=INK)
        axes.set_ylabel(ECE[name], color=INK)
        write_title(axes, title or None if axes is grid[0] else None, _facts(runs, name, against))
    if alone:
        _step_scale(figure, drawn[0], grid)
    else:
        labels = []
        for label, each in runs.items():
            texts = [
                f"{ECE[name]}: {correlation_text(each, against, name, SIGNS)}" for name in shown
            ]
            labels.append("   ".join([*texts, shorten(label, 26)]))
        legend_below(figure, drawn, labels, columns=1)
        figure.legends[0].set_title(EXPLAINED)
        figure.legends[0].get_title().set(fontsize=8.5, color=INK)
    return figure


def _draw_path(axes: "matplotlib.axes.Axes", rows: Rows, name: str, against: str, at: int) -> Any:
    """One training: points coloured by step, joined in their order."""
    x, y = column(rows, against), column(rows, name)
    axes.plot(x, y, color=SOFT, linewidth=0.7, alpha=0.5, zorder=2)
    steps = np.array(steps_of(rows))
    look: dict[str, Any] = {"s": 24, "zorder": 3, "edgecolors": INK, "linewidths": 0.3}
    look |= {"cmap": "viridis", "vmin": steps.min(), "vmax": max(steps.max(), steps.min() + 1)}
    return axes.scatter(x, y, c=steps, **look)


def _draw_points(axes: "matplotlib.axes.Axes", rows: Rows, name: str, against: str, at: int) -> Any:
    """One of several trainings: points of one colour, the earliest faint."""
    hue = SERIES[at % len(SERIES)]
    # The mark changes with every colour and once more when the colours start again.
    mark = MARKERS[(at + at // len(SERIES)) % len(MARKERS)]
    fade: Any = np.linspace(0.25, 1, len(rows))
    look: dict[str, Any] = {"color": hue, "marker": mark, "linewidths": 0, "zorder": 3}
    if len(rows):
        axes.scatter(column(rows, against), column(rows, name), s=18, alpha=fade, **look)
    # For the legend, which would take the faintest.
    return axes.scatter([], [], s=24, **look)


def _step_scale(figure: "matplotlib.figure.Figure", points: Any, grid: list[Any]) -> None:
    """What step a colour is."""
    bar = figure.colorbar(points, ax=grid, pad=0.02, aspect=30, format="{x:,.0f}")
    bar.set_label("step", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=SOFT, labelsize=9, length=3, width=0.8)


def _facts(runs: Mapping[str, Rows], name: str, against: str) -> str:
    """The correlations of one training, or their means over several."""
    if len(runs) == 1:
        return correlation_text(next(iter(runs.values())), against, name)
    means = {sign: correlations(runs, name, against, kind=kind) for kind, sign in SIGNS.items()}
    return "   ".join(f"mean {sign} {interval_text(each.mean)}" for sign, each in means.items())
