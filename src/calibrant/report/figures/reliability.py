"""Reliability diagrams of the top label or positive class, and of every class."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.metrics import BinSums, class_sums
from calibrant.metrics.bins import Bins
from calibrant.metrics.verdict import class_label
from calibrant.multi_label import MultiLabel
from calibrant.predictions import Predictions
from calibrant.report.figures import style as look
from calibrant.report.reliability_points import (
    FEW,
    POSITIVE,
    TOP_LABEL,
    Points,
    Terms,
    diagram_sums,
    points_of,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

STYLES = ("bars", "line")
# Inches of a panel of a class, and panels beside one another.
SIDE, COLUMNS = 1.75, 4


def reliability_diagram(
    predictions: Predictions | Mapping[str, Predictions],
    *,
    bins: Bins = 15,
    adaptive: bool = False,
    style: Literal["bars", "line"] = "bars",
    level: float = 0.95,
    title: str | None = None,
) -> "matplotlib.figure.Figure":
    """Accuracy against confidence, and below it how often each confidence occurs.

    For two classes it is the frequency of the positive class, class 1, against its probability,
    and the histogram shows on which side of 1/2 a prediction is decided.

    A calibrated model lies on the diagonal; the shaded gap to it, weighted by the histogram, is
    the ECE. A bin's point stands at its mean confidence, so its distance to the diagonal is
    exactly that gap. Whiskers, or the band about a line, are Wilson intervals of the accuracy.
    Bins with fewer than 10 examples are faint; lines pool them with their neighbours.

    Args:
        predictions: what to draw; several by name are laid over one another as lines.
        bins: how many bins ((b-1)/B, b/B], or their edges from 0 to 1.
        adaptive: bins that hold equally many examples, as in `adaptive_ece`. The histogram keeps
            bins of equal width: of equal mass, all its bars would be the same.
        style: "bars", or "line" with a band for the intervals; several are always lines.
        level: confidence level of the intervals.
    """
    if style not in STYLES:
        raise ValueError(f"style must be one of {list(STYLES)}, got {style!r}")
    if isinstance(predictions, MultiLabel):
        raise TypeError("draw one label, multi.label(name), or all entries, multi.pooled()")
    named = {"": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    if not named:
        raise ValueError("need at least one Predictions to draw, got none")
    terms = POSITIVE if all(each.classes == 2 for each in named.values()) else TOP_LABEL
    sums = {
        name: diagram_sums(each, terms, bins=bins, adaptive=adaptive)
        for name, each in named.items()
    }
    shares = {name: diagram_sums(each, terms, bins=bins) for name, each in named.items()}
    lines = len(named) > 1 or style == "line"
    points = {name: points_of(each, level=level, merge=lines) for name, each in sums.items()}
    error = "adaptive ECE" if adaptive else "ECE"

    figure = look.new_figure(5.6, 6.4 + 0.18 * max(0, len(named) - 2))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.6, 1))
    look.style_axes(upper)
    look.style_axes(lower)
    if len(named) == 1:
        ((name, own),) = points.items()
        title = title or name or None
        (look.draw_bars if style == "bars" else _draw_line)(upper, own)
        _draw_histogram(lower, shares[name], terms)
        facts = _facts(sums[name], error, terms)
        legend = look.gap_legend([own], level=level, band=lines, terms=terms)
        if terms is POSITIVE:
            legend["decided for it (above 0.5)"] = look.patch(look.DECIDED)
        look.legend_below(figure, legend.items(), columns=4 if terms is TOP_LABEL else 3)
    else:
        handles = [
            _draw_series(upper, lower, points[name], shares[name], at)
            for at, name in enumerate(named)
        ]
        labels = [f"{error} {sums[name].ece:.4f}   {look.shorten(name, 44)}" for name in named]
        facts = f"{_sizes(sums)}    bands: {100 * level:g}% intervals"
        if any(each.few.any() for each in points.values()):
            facts += f"    faint: under {FEW} examples"
        look.legend_below(figure, zip(labels, handles, strict=True), columns=1)
    look.unit_square(upper)
    positive = _positive_name(named) if terms is POSITIVE else ""
    upper.set_ylabel(f"frequency of {positive}" if positive else "accuracy", parse_math=False)
    across = f"probability of {positive}" if positive else "confidence"
    lower.set_xlabel(across, parse_math=False)
    lower.set_ylabel("share")
    lower.set_ylim(bottom=0)
    lower.locator_params(axis="y", nbins=3)
    lower.yaxis.set_major_formatter("{x:g}")
    figure.align_ylabels([upper, lower])
    look.write_title(upper, title, facts)
    return figure


def _facts(sums: BinSums, error: str, terms: Terms) -> str:
    rate, name = sums.correct.sum() / sums.count.sum(), terms.overall
    return f"n = {sums.count.sum():,.10g}    {name} {rate:.4f}    {error} {sums.ece:.4f}"


def _positive_name(named: Mapping[str, Predictions]) -> str:
    """The positive class, if all models call it the same."""
    names = {each.class_names[1] if each.class_names else "1" for each in named.values()}
    return look.shorten(class_label(names.pop()), 30) if len(names) == 1 else "the positive class"


def _sizes(sums: Mapping[str, BinSums]) -> str:
    sizes = sorted({float(each.count.sum()) for each in sums.values()})
    return f"n = {sizes[0]:,.10g}" + (f" to {sizes[-1]:,.10g}" if len(sizes) > 1 else "")


def _draw_line(axes: "matplotlib.axes.Axes", points: Points) -> None:
    """Join the points, shade their gap to the diagonal and the band of their intervals."""
    x, y = points.confidence, points.accuracy
    for side, hue in ((y <= x, look.OVER), (y >= x, look.UNDER)):
        axes.fill_between(
            x, y, x, where=side.tolist(), interpolate=True, color=hue, alpha=0.5, linewidth=0
        )
    look.draw_band(axes, points, color=look.INK, alpha=look.BAND)
    _draw_joined(axes, points, color=look.INK, marker="o")


def _draw_joined(axes: "matplotlib.axes.Axes", points: Points, **options: Any) -> Any:
    """Draw a line through the bins; faint if there are too few examples for one."""
    options |= {"markersize": 4, "markeredgewidth": 0, "clip_on": False, "zorder": 4}
    faint = look.FAINT if points.few.any() else 1.0
    x, y = points.confidence, points.accuracy
    (line,) = axes.plot(x, y, linewidth=1.6, alpha=faint, **options)
    return line


def _draw_series(
    upper: "matplotlib.axes.Axes",
    lower: "matplotlib.axes.Axes",
    points: Points,
    shares: BinSums,
    at: int,
) -> Any:
    """Draw one of several predictions as a line with a band, and its histogram as steps."""
    turn, place = divmod(at, len(look.SERIES))
    hue, dashes = look.SERIES[place], look.LINES[turn % len(look.LINES)]
    look.draw_band(upper, points, color=hue, alpha=look.LIGHT_BAND)
    line = _draw_joined(upper, points, color=hue, linestyle=dashes, marker=look.MARKERS[place])
    lower.stairs(shares.share, shares.edges, color=hue, linewidth=1.6, linestyle=dashes)
    return line


def _draw_histogram(axes: "matplotlib.axes.Axes", sums: BinSums, terms: Terms) -> None:
    """Draw the share of each bin, and lines at the mean score and the overall frequency.

    For two classes, bins above 1/2, where the positive class is predicted, are darker.
    """
    edges = np.asarray(sums.edges)
    bars: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.8, "align": "edge"}
    shades = np.where(edges[:-1] + edges[1:] > 1, look.DECIDED, look.BAR).tolist()
    bars["color"] = shades if terms is POSITIVE else look.BAR
    axes.bar(edges[:-1], sums.share, width=np.diff(edges), **bars)
    total = sums.count.sum()
    if terms is POSITIVE:
        axes.axvline(0.5, color=look.BAR, linewidth=0.8, zorder=0.5)
    means = {
        f"mean {terms.score}": (float(sums.confidence.sum() / total), "-"),
        terms.overall: (float(sums.correct.sum() / total), (0, (2, 1.5))),
    }
    for name, (value, dashes) in means.items():
        line: dict[str, Any] = {"color": look.INK, "linewidth": 1.4, "linestyle": dashes}
        axes.axvline(value, **line, label=f"{name} {value:.4f}", zorder=4)
    # Above the axes, where it can cover nothing.
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.97),
        ncols=2,
        frameon=False,
        fontsize=8.5,
        labelcolor=look.INK,
        handlelength=1.8,
        columnspacing=1.5,
        borderpad=0,
    )


def classwise_diagrams(
    predictions: Predictions,
    *,
    bins: Bins = 15,
    most: int = 12,
    level: float = 0.95,
    title: str | None = None,
) -> "matplotlib.figure.Figure":
    """How often each class occurs against the probability it was given, one panel for each class.

    A panel's ECE is the entry of `per_class_ece`. Classes without an example cannot be judged and
    are left out.

    Args:
        predictions: what to draw.
        bins: how many bins ((b-1)/B, b/B], or their edges from 0 to 1.
        most: panels at most; of more classes the worst calibrated are shown, worst first.
        level: confidence level of the Wilson intervals.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    sums = class_sums(predictions, bins=bins)
    shown, chosen = _choose(sums, most)
    parts = [_of_class(sums, c) for c in shown]
    points = [points_of(part, level=level) for part in parts]
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = look.new_figure(max(SIDE * columns, 5.6), rows * (SIDE + 0.25) + 1.2)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, c, part, own in zip(grid.flat, shown, parts, points, strict=False):
        look.style_axes(axes, small=True)
        look.draw_bars(axes, own, small=True)
        look.unit_square(axes, small=True)
        name = f"class {c}" if predictions.class_names is None else predictions.class_names[c]
        facts = f"ECE {part.ece:.4f}, n = {part.correct.sum():,.10g}"
        words = f"{look.shorten(name, 22)}\n{facts}"
        axes.set_title(words, loc="left", fontsize=8, **look.PLAIN)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(shown) - columns) : len(shown)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("probability", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("frequency", fontsize=8)
    heading = chosen if title is None else f"{look.shorten(title, 70)}\n{chosen}"
    figure.suptitle(heading, x=0.02, ha="left", fontsize=10.5, **look.PLAIN)
    look.legend_below(
        figure, look.gap_legend(points, level=level, terms=POSITIVE).items(), columns=4
    )
    return figure


def _choose(sums: BinSums, most: int) -> tuple[list[int], str]:
    """Which classes to show, and a line that says which."""
    occurring = np.flatnonzero(sums.correct.sum(1) > 0)
    absent = len(sums.count) - len(occurring)
    left_out = f" ({absent} without an example)" if absent else ""
    if len(occurring) <= most:
        return occurring.tolist(), f"every class, {len(occurring)} in all{left_out}"
    errors = np.asarray(sums.error(1))[occurring]
    worst = occurring[np.argsort(-errors, kind="stable")[:most]]
    return worst.tolist(), (
        f"the {most} worst calibrated of {len(occurring)} classes{left_out}, worst first"
    )


def _of_class(sums: BinSums, c: int) -> BinSums:
    return BinSums(sums.count[c], sums.confidence[c], sums.correct[c], sums.edges)
