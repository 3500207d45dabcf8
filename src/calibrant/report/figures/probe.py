"""What a probe read along a training: calibration error beside or against curvature, margins."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.curvature.correlation import Kind, correlations
from calibrant.report import readings
from calibrant.report.charts.axes import fit_scale
from calibrant.report.figures import style as look
from calibrant.report.readings import ECE, MARGINS, SHARPNESS, Rows, column, finite, steps_of

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

GREEN, PINK, SKY, AMBER = look.SERIES[2:6]
HUES = {"train_ece": look.OVER, "test_ece": AMBER, "val_ece": AMBER}
HUES |= {"train_log_tail": look.OVER, "test_log_tail": AMBER, "val_log_tail": AMBER}
HUES |= {"hessian": SKY, "gauss_newton": look.UNDER, "batch_sharpness": GREEN}
HUES |= {"margin_50": look.UNDER, "margin_0": PINK}
BAND_HUES = ("#d3e6f1", "#8fc1de")
TAILS = {
    "train_log_tail": "log Q, training",
    "val_log_tail": "log Q, validation",
    "test_log_tail": "log Q, test",
}
ALL_MARGINS = ("margin_0", "margin_5", "margin_25", "margin_50", "margin_75", "margin_95")
AGAINST = {
    "gauss_newton": "Gauss-Newton sharpness",
    "hessian": "Hessian sharpness",
    "batch_sharpness": "batch sharpness",
    "trace": "Gauss-Newton trace",
}
SIGNS: dict[Kind, str] = {"pearson": "r", "spearman": "rho"}
EXPLAINED = "r: Pearson, rho: Spearman, each with its 95 % interval"
# Axes beside one another.
COLUMNS = 3


def sharpness_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw calibration error and sharpness along training.

    ECE has the left scale, sharpness the right one; either is logarithmic where it spans more than
    one and a half powers of ten. The dashed line is the edge of stability: above it, gradient
    descent with this learning rate diverges on a quadratic. It is left out where it is a hundred
    times above all sharpness. The band around batch sharpness is its standard error.

    Args:
        rows: records of a probe; several trainings by name get their own axes with equal scales.
    """
    runs = readings.without_far_edges(_by_training(rows, (*ECE, *SHARPNESS)))
    figure, grid = _training_grid(runs, 1, title)
    errors = finite(runs.values(), ECE)
    curves = finite(runs.values(), (*SHARPNESS, "edge"))
    handles: dict[str, Any] = {}
    for (axes,), each in zip(grid, runs.values(), strict=True):
        _step_axis(axes, each)
        if errors:
            handles |= _draw(axes, each, ECE)
            _set_scale(axes, "y", errors, zero=True)
            axes.set_ylabel("ECE", color=look.OVER)
        if curves:
            side = _right_side(axes) if errors else axes
            handles |= _draw(side, each, SHARPNESS) | _draw_edge(side, each)
            _set_scale(side, "y", curves, zero=True)
            side.set_ylabel("sharpness", color=look.UNDER)
    look.legend_below(figure, handles.items(), columns=min(3, len(handles)))
    return figure


def margin_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    r"""Draw the margins of the training examples along training, and their tail.

    Above, the median and the smallest margin, with bands of quantiles; below the dashed line
    predictions are wrong. Beneath, log Q with $Q = \mathrm{mean}\, e^{-m}$, which bounds
    calibration error and curvature: it follows the smallest margins, not the median.

    Args:
        rows: records of a probe; several trainings by name get their own axes with equal scales.
    """
    runs = _by_training(rows, (*ALL_MARGINS, *TAILS))
    figure, grid = _training_grid(runs, 2, title)
    handles: dict[str, Any] = {}
    for (upper, lower), each in zip(grid, runs.values(), strict=True):
        handles |= _draw_margins(upper, each) | _draw(lower, each, TAILS)
        for axes, parts, name in ((upper, ALL_MARGINS, "margin"), (lower, TAILS, "log Q")):
            _set_scale(axes, "y", finite(runs.values(), parts), plain=True)
            axes.set_ylabel(name)
        lower.locator_params(axis="y", nbins=4)
        _step_axis(lower, each)
        upper.sharex(lower)
        upper.tick_params(labelbottom=False)
    look.legend_below(figure, handles.items(), columns=min(3, len(handles)))
    return figure


def scatter_figure(
    rows: Rows | Mapping[str, Rows], *, against: str = "gauss_newton", title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw each reading's calibration error against its sharpness, with their correlation.

    Readings of one training are coloured by step and joined in their order; of several, each has
    its own colour, and early readings are faint. Correlations are those of the numbers themselves
    also where a scale is logarithmic. Their intervals are by `curvature.correlation`, those of a
    mean over trainings by `curvature.correlations`.

    Args:
        rows: records of a probe, or those of several trainings by name.
        against: column of the sharpness: "gauss_newton", "hessian", "batch_sharpness", "trace".
    """
    runs = _by_training(rows, (against,))
    together = [row for each in runs.values() for row in each]
    pairs = {name: readings.pairs_of(together, against, name)[1:] for name in ECE}
    shown = {name: both for name, both in pairs.items() if both[0]}
    if not shown:
        raise ValueError(f"no reading has both {against} and one of {list(ECE)}")
    alone = len(runs) == 1
    height = 4.2 + (0 if alone else 0.2 * len(runs))
    figure, grid = look.new_row(1.2 + 4.8 * len(shown), height, len(shown))
    for axes, (name, both) in zip(grid, shown.items(), strict=True):
        draw = _draw_path if alone else _draw_points
        drawn = [draw(axes, each, name, against, at) for at, each in enumerate(runs.values())]
        for which, values in zip("xy", both, strict=True):
            _set_scale(axes, which, values)
        axes.set(xlabel=AGAINST.get(against, against), ylabel=ECE[name])
        look.write_title(axes, title * (axes is grid[0]), _correlation_facts(runs, name, against))
    if alone:
        bar = figure.colorbar(drawn[0], ax=grid, pad=0.02, aspect=30, format="{x:,.0f}")
        bar.set_label("step", color=look.INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(colors=look.SOFT, labelsize=9, length=3, width=0.8)
    else:
        labels = []
        for label, each in runs.items():
            found = [
                f"{ECE[name]}: {readings.correlation_text(each, against, name, SIGNS)}"
                for name in shown
            ]
            labels.append("   ".join([*found, look.shorten(label, 26)]))
        legend = look.legend_below(figure, zip(labels, drawn, strict=True), columns=1)
        legend.set_title(EXPLAINED)
        legend.get_title().set(fontsize=8.5, color=look.INK)
    return figure


def _by_training(rows: Rows | Mapping[str, Rows], columns: Sequence[str]) -> dict[str, Rows]:
    """Trainings by name, of which at least one column has a number to draw."""
    runs = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    if not finite(runs.values(), columns):
        known = list(dict.fromkeys(key for each in runs.values() for row in each for key in row))
        raise ValueError(f"need readings of a probe with one of {list(columns)}, got {known}")
    return runs


def _training_grid(
    runs: Mapping[str, Rows], high: int, title: str
) -> tuple["matplotlib.figure.Figure", list[list[Any]]]:
    """A figure, and the `high` axes of each training, one below the other."""
    columns = min(COLUMNS, len(runs))
    lines = -(-len(runs) // columns)
    figure = look.new_figure((6.8, 9.0, 11.4)[columns - 1], 1.3 + lines * (2.0 + high))
    ratios = (2.4, 1)[:high] * lines
    grid = figure.subplots(high * lines, columns, squeeze=False, height_ratios=ratios)
    found = grid.reshape(lines, high, columns).swapaxes(1, 2).reshape(-1, high)
    for axes in found.flat:
        look.style_axes(axes)
    for axes in found[len(runs) :].flat:
        axes.remove()
    for (axes, *_), (label, rows) in zip(found, runs.items(), strict=False):
        if len(runs) == 1:
            look.write_title(axes, title or label, _facts(rows))
        else:
            axes.set_title(look.shorten(label, 40), loc="left", fontsize=9.5, **look.PLAIN)
    if title and len(runs) > 1:
        name = look.shorten(title, 90)
        figure.suptitle(name, x=0.01, ha="left", fontsize=11.5, fontweight="bold", **look.PLAIN)
    return figure, found[: len(runs)].tolist()


def _facts(rows: Rows) -> str:
    """How many readings there are, and at which learning rates."""
    rates = sorted(set(finite([rows], ["lr"])))
    text = f"{len(rows)} reading{'s' if len(rows) != 1 else ''}"
    if rates:
        text += f"    learning rate {rates[-1]:.4g}"
        text += f" to {rates[0]:.4g}" if len(rates) > 1 else ""
    return text


def _set_scale(
    axes: "matplotlib.axes.Axes", which: str, values: Sequence[float], **options: bool
) -> None:
    """Set the scale of the "x" or "y" axis as the charts of the page do."""
    if values:
        scale = fit_scale(values, 0, 1, **options)
        kind = "log" if scale.log else "linear"
        axes.set(**{f"{which}scale": kind, f"{which}lim": (scale.low, scale.high)})


def _step_axis(axes: "matplotlib.axes.Axes", rows: Rows) -> None:
    """Set up the axis of steps."""
    axes.set_xlabel("step" if readings.has_numbers(column(rows, "step")) else "reading")
    axes.locator_params(axis="x", integer=True, nbins=6)
    if len(rows) == 1:
        at = steps_of(rows)[0]
        axes.set_xlim(at - 1, at + 1)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _right_side(axes: "matplotlib.axes.Axes") -> "matplotlib.axes.Axes":
    """Return new axes that share x and have their y scale on the right."""
    side = axes.twinx()
    look.style_axes(side)
    side.grid(visible=False)
    side.spines[:].set_visible(False)
    side.spines["right"].set(visible=True, color=look.SOFT, linewidth=0.8)
    return side


def _draw(axes: "matplotlib.axes.Axes", rows: Rows, labels: Mapping[str, str]) -> dict[str, Any]:
    """Lines of some columns, by label; nothing for those without a number."""
    steps, drawn = steps_of(rows), {}
    for name, label in labels.items():
        values, band, hue = column(rows, name), readings.error_band(rows, name), HUES[name]
        if readings.has_numbers(values):
            mark = "o" if len(rows) < 30 else ""
            (drawn[label],) = axes.plot(steps, values, color=hue, marker=mark, markersize=3.5)
        if band is not None:
            axes.fill_between(steps, *band, color=hue, alpha=0.2, linewidth=0)
    return drawn


def _draw_edge(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """The edge of stability, which moves with the learning rate."""
    steps, wide = _widened(rows)
    edge = column(wide, "edge")
    if not readings.has_numbers(edge):
        return {}
    (line,) = axes.plot(steps, edge, color=look.INK, linewidth=1.15, linestyle=look.DASHES)
    return {readings.EDGE: line}


def _draw_margins(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """Bands, the median, the smallest one, and the line between right and wrong."""
    steps, wide = _widened(rows)
    drawn = {}
    bands = zip(readings.MARGIN_BANDS.items(), BAND_HUES, strict=True)
    for (label, (below, above)), hue in bands:
        low, high = column(wide, below), column(wide, above)
        if np.isfinite([low, high]).all(0).any():
            drawn[label] = axes.fill_between(steps, low, high, color=hue, linewidth=0)
    drawn |= _draw(axes, rows, MARGINS)
    axes.axhline(0, color=look.INK, linewidth=1, linestyle=look.DASHES)
    return drawn


def _widened(rows: Rows) -> tuple[list[float], Rows]:
    """Steps and rows; a single reading becomes one step wide, or its bands would not be seen."""
    steps = steps_of(rows)
    return ([steps[0] - 0.5, steps[0] + 0.5], [*rows] * 2) if len(rows) == 1 else (steps, rows)


def _draw_path(axes: "matplotlib.axes.Axes", rows: Rows, name: str, against: str, at: int) -> Any:
    """One training: points coloured by step, joined in their order."""
    x, y = column(rows, against), column(rows, name)
    axes.plot(x, y, color=look.SOFT, linewidth=0.7, alpha=0.5, zorder=2)
    steps = np.array(steps_of(rows))
    marks: dict[str, Any] = {"s": 24, "zorder": 3, "edgecolors": look.INK, "linewidths": 0.3}
    marks |= {"cmap": "viridis", "vmin": steps.min(), "vmax": max(steps.max(), steps.min() + 1)}
    return axes.scatter(x, y, c=steps, **marks)


def _draw_points(axes: "matplotlib.axes.Axes", rows: Rows, name: str, against: str, at: int) -> Any:
    """One of several trainings: points of one colour, the earliest faint."""
    colours = len(look.SERIES)
    # The mark changes with every colour and once more when the colours start again.
    mark = look.MARKERS[(at + at // colours) % len(look.MARKERS)]
    marks: dict[str, Any] = {"color": look.SERIES[at % colours], "marker": mark, "linewidths": 0}
    if len(rows):
        fade: Any = np.linspace(0.25, 1, len(rows))
        x, y = column(rows, against), column(rows, name)
        axes.scatter(x, y, s=18, alpha=fade, zorder=3, **marks)
    # For the legend, which would take the faintest.
    return axes.scatter([], [], s=24, zorder=3, **marks)


def _correlation_facts(runs: Mapping[str, Rows], name: str, against: str) -> str:
    """The correlations of one training, or their means over several."""
    if len(runs) == 1:
        return readings.correlation_text(next(iter(runs.values())), against, name)
    means = {sign: correlations(runs, name, against, kind=kind) for kind, sign in SIGNS.items()}
    found = {sign: readings.interval_text(each.mean) for sign, each in means.items()}
    return "   ".join(f"mean {sign} {text}" for sign, text in found.items())
