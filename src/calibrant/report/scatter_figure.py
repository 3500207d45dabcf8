"""Calibration error against sharpness, reading by reading."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from calibrant.curvature.correlation import LEAST, Kind, correlation, correlations
from calibrant.metrics import Interval
from calibrant.report.panels import (
    INK,
    MARKERS,
    SERIES,
    SOFT,
    dress,
    head,
    legend_below,
    new_figure,
    shorten,
)
from calibrant.report.probe_panels import Rows, array_of, fit, named, steps_of

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

PANELS = {"train_ece": "training", "val_ece": "validation", "test_ece": "test"}
NAMES = {
    "gauss_newton": "Gauss-Newton sharpness",
    "hessian": "Hessian sharpness",
    "batch_sharpness": "batch sharpness",
    "trace": "Gauss-Newton trace",
}
FULL: dict[Kind, str] = {"pearson": "Pearson", "spearman": "Spearman"}
SIGNS: dict[Kind, str] = {"pearson": "r", "spearman": "rho"}
EXPLAINED = "r Pearson, rho Spearman, each with its 95 % interval"


def scatter_figure(
    rows: Rows | Mapping[str, Rows], *, against: str = "gauss_newton", title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw each reading's calibration error against its sharpness, and say how they correlate.

    Readings of one training are coloured by step and joined in their order; of several, each has
    its own colour, and early readings are faint. Correlations are those of the numbers themselves
    also where a scale is logarithmic; r is Pearson's, rho Spearman's. Their intervals are by
    `curvature.correlation`, those of a mean over trainings by `curvature.correlations`.

    Args:
        rows: of a probe; of several trainings by name.
        against: column of the sharpness: "gauss_newton", "hessian", "batch_sharpness", "trace".
        title: above the figure.
    """
    runs = named(rows, (against,))
    shown = {
        name: label for name, label in PANELS.items() if _pairs(runs.values(), name, against).size
    }
    if not shown:
        raise ValueError(f"no reading has both {against} and one of {list(PANELS)}")
    alone = len(runs) == 1
    figure = new_figure(1.2 + 4.8 * len(shown), 4.2 + (0 if alone else 0.2 * len(runs)))
    grid = figure.subplots(1, len(shown), squeeze=False)[0].tolist()
    for axes, (name, label) in zip(grid, shown.items(), strict=True):
        dress(axes)
        draw = _draw_path if alone else _draw_points
        drawn = [draw(axes, each, name, against, at) for at, each in enumerate(runs.values())]
        for which, values in zip("xy", _pairs(runs.values(), name, against), strict=True):
            fit(axes, which, values)
        axes.set_xlabel(NAMES.get(against, against), color=INK)
        axes.set_ylabel(f"ECE, {label} examples", color=INK)
        head(axes, title or None if axes is grid[0] else None, _facts(runs, name, against))
    if alone:
        _step_scale(figure, drawn[0], grid)
    else:
        labels = []
        for label, each in runs.items():
            texts = [f"{part} {_both(each, name, against)}" for name, part in shown.items()]
            labels.append("   ".join([*texts, shorten(label, 26)]))
        legend_below(figure, drawn, labels, columns=1)
        figure.legends[0].set_title(EXPLAINED)
        figure.legends[0].get_title().set(fontsize=8.5, color=INK)
    return figure


def _pairs(runs: Iterable[Rows], name: str, against: str) -> Float64[np.ndarray, "2 n"]:
    """Sharpness and error of all readings that have both."""
    rows = [row for each in runs for row in each]
    pairs = np.stack([array_of(rows, against), array_of(rows, name)])
    return pairs[:, np.isfinite(pairs).all(0)]


def _draw_path(axes: "matplotlib.axes.Axes", rows: Rows, name: str, against: str, at: int) -> Any:
    """One training: points coloured by step, joined in their order."""
    x, y = array_of(rows, against), array_of(rows, name)
    axes.plot(x, y, color=SOFT, linewidth=0.7, alpha=0.5, zorder=2)
    steps = steps_of(rows)
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
        axes.scatter(array_of(rows, against), array_of(rows, name), s=18, alpha=fade, **look)
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
        text = _both(next(iter(runs.values())), name, against, FULL)
        return text.replace("+", "")
    means = {sign: correlations(runs, name, against, kind=kind) for kind, sign in SIGNS.items()}
    return "   ".join(f"mean {sign} {_text(each.mean)}" for sign, each in means.items())


def _both(rows: Rows, name: str, against: str, called: Mapping[Kind, str] = SIGNS) -> str:
    """Both correlations of a training, with their intervals."""
    pairs = _pairs([rows], name, against)
    if pairs.shape[1] < LEAST:
        return f"fewer than {LEAST} readings"
    bars = {sign: correlation(*pairs, kind=kind) for kind, sign in called.items()}
    return "  ".join(f"{sign} {_text(bar)}" for sign, bar in bars.items())


def _text(bar: Interval) -> str:
    """An interval in few characters, all of the same width."""
    if math.isnan(bar.value):
        return "none"
    if math.isnan(bar.low):
        return f"{bar.value:+.2f}"
    return f"{bar.value:+.2f} [{bar.low:+.2f}, {bar.high:+.2f}]"
