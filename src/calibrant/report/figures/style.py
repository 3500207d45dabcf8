"""Style of all figures: colours, bars, whiskers, the look of axes, legends and titles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.extras import need
from calibrant.report.formatting import shorten as shorten
from calibrant.report.reliability_points import FEW, Points

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, SOFT, RULE = "#22262d", "#5b6470", "#e4e7eb"
BAR, BOX = "#c3ccd8", "#f2f4f7"
# Orange against blue: told apart with every common kind of colour blindness.
OVER, UNDER = "#d55e00", "#0072b2"
# Okabe and Ito's palette, without its yellow, which is faint on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#22262d")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FAINT = 0.4
# Opacity of a band: of one model, and of each of several.
BAND, LIGHT_BAND = 0.25, 0.14
LINES = ("-", "--", ":")


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """Make a figure of its own, without pyplot and so without global state."""
    need("matplotlib", extra="report", what="drawing figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.1)
    return figure


def style_axes(axes: "matplotlib.axes.Axes", *, small: bool = False) -> None:
    """Give the axes the plain look of all figures: few lines, a faint grid behind the data."""
    axes.set_facecolor("white")
    axes.set_axisbelow(True)
    axes.grid(color=RULE, linewidth=0.6 if small else 0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(SOFT)
        axes.spines[side].set_linewidth(0.8)
    axes.tick_params(colors=SOFT, labelsize=7 if small else 9, length=3, width=0.8)


def unit_square(axes: "matplotlib.axes.Axes", *, small: bool = False) -> None:
    """Set both axes to [0, 1] and draw the diagonal, on which predictions are calibrated."""
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    ticks = [0, 0.5, 1] if small else np.linspace(0, 1, 6).tolist()
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks)
    axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    axes.set_yticklabels([f"{tick:g}" for tick in ticks])


def draw_bars(axes: "matplotlib.axes.Axes", points: Points, *, small: bool = False) -> None:
    """Draw the accuracy of each bin as a bar, its gap to the confidence, and its whisker."""
    width = points.right - points.left
    base = np.minimum(points.accuracy, points.confidence)
    gap = np.abs(points.accuracy - points.confidence)
    hue = np.where(points.over, OVER, UNDER).tolist()
    line = 0.4 if small else 0.8
    place: dict[str, Any] = {"width": width, "align": "edge", "edgecolor": "white"}
    axes.bar(points.left, base, **place, color=_fade(BAR, points), linewidth=line)
    axes.bar(points.left, gap, bottom=base, **place, color=_fade(hue, points, 0.55), linewidth=line)
    draw_whiskers(axes, points, small=small)


def draw_whiskers(
    axes: "matplotlib.axes.Axes", points: Points, *, small: bool = False, color: str = INK
) -> None:
    """Mark the accuracy at the mean confidence of each bin, with its interval."""
    colors = _fade(color, points)
    x = points.confidence
    width, size = (0.7, 4) if small else (1.1, 14)
    axes.vlines(x, points.low, points.high, colors=colors, linewidth=width, zorder=4, clip_on=False)
    axes.scatter(x, points.accuracy, s=size, c=colors, zorder=5, linewidths=0, clip_on=False)


def _fade(color: str | Sequence[str], points: Points, alpha: float = 1.0) -> Any:
    """The colour of each bin as RGBA, fainter where there are few examples."""
    from matplotlib.colors import to_rgba_array

    rgba = np.broadcast_to(to_rgba_array(color), (len(points.count), 4)).copy()
    rgba[:, 3] = np.where(points.few, FAINT * alpha, alpha)
    return rgba


def draw_band(axes: "matplotlib.axes.Axes", points: Points, *, color: str, alpha: float) -> None:
    """Shade the intervals, from the start of the first bin to the end of the last."""
    # Up to the ends, or a single bin would have a band without width.
    x = np.concatenate([points.left[:1], points.confidence, points.right[-1:]])
    low, high = (np.pad(side, 1, mode="edge") for side in (points.low, points.high))
    enough = np.pad(~points.few, 1, mode="edge").tolist()
    look: dict[str, Any] = {"color": color, "linewidth": 0, "zorder": 0.9}
    # Twice, so that stretches next to a bin with few examples come out fainter.
    axes.fill_between(x, low, high, alpha=FAINT * alpha, **look)
    axes.fill_between(x, low, high, where=enough, alpha=(1 - FAINT) * alpha, **look)


def gap_legend(
    points: Sequence[Points], *, level: float, band: bool = False
) -> tuple[list[Any], list[str]]:
    """Handles and labels for what the panels show, and nothing that they do not."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[tuple[Any, str]] = []
    if any(part.over.any() for part in points):
        entries.append((Patch(color=OVER, alpha=0.55, linewidth=0), "over-confident"))
    if any((part.confidence < part.accuracy).any() for part in points):
        entries.append((Patch(color=UNDER, alpha=0.55, linewidth=0), "under-confident"))
    whisker = Line2D([], [], color=INK, marker="|", markersize=9, linestyle="none")
    shade = Patch(color=INK, alpha=BAND, linewidth=0)
    entries.append((shade if band else whisker, f"{100 * level:g}% interval"))
    if any(part.few.any() for part in points):
        faint = Line2D([], [], color=INK, alpha=FAINT, marker="o", markersize=4)
        entries.append((faint, f"under {FEW} examples"))
    return [handle for handle, _ in entries], [label for _, label in entries]


def legend_below(
    figure: "matplotlib.figure.Figure", handles: list[Any], labels: list[str], *, columns: int
) -> None:
    """Put the legend under the axes, where it can cover nothing."""
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def name_figure(figure: "matplotlib.figure.Figure", title: str) -> None:
    """Write a title above all axes of a figure."""
    text = figure.suptitle(shorten(title, 90), x=0.01, ha="left", fontsize=11.5, color=INK)
    text.set(fontweight="bold", parse_math=False)


def write_title(
    axes: "matplotlib.axes.Axes", title: str | None, facts: str, *, longest: int = 46
) -> None:
    """Write the title and the facts above the axes, where they can cover nothing."""
    axes.annotate(
        facts,
        (0, 1),
        xycoords="axes fraction",
        xytext=(4, 12),
        textcoords="offset points",
        fontsize=9,
        color=INK,
        parse_math=False,
        bbox={"boxstyle": "round,pad=0.45", "facecolor": BOX, "edgecolor": "none"},
    )
    if title is not None:
        axes.set_title(
            shorten(title, longest),
            loc="left",
            pad=34,
            fontsize=11.5,
            fontweight="bold",
            color=INK,
            parse_math=False,
        )
