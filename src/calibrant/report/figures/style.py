"""Style of all figures: colours, bars, whiskers, the look of axes, legends and titles; saving."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.extras import need
from calibrant.files.atomic import replacing
from calibrant.report.formatting import shorten as shorten
from calibrant.report.reliability_points import FEW, TOP_LABEL, Points, Terms

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, SOFT, RULE = "#22262d", "#5b6470", "#e4e7eb"
BAR, DECIDED, BOX = "#c3ccd8", "#8d9bb0", "#f2f4f7"
# Orange against blue: told apart with every common kind of colour blindness.
OVER, UNDER = "#d55e00", "#0072b2"
# Okabe and Ito's palette, without its yellow, which is faint on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#22262d")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FAINT = 0.4
# Opacity of a band: of one model, and of each of several.
BAND, LIGHT_BAND = 0.25, 0.14
LINES = ("-", "--", ":")
DASHES = (0, (4, 2.4))
# Text that is written as it is, with no mathematics in it.
PLAIN: dict[str, Any] = {"color": INK, "parse_math": False}
# What to leave out of each kind of file, so that the same figure gives the same bytes.
KINDS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
DPI = 160


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """Make a figure of its own, without pyplot and so without global state."""
    need("matplotlib", extra="report", what="drawing figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.1)
    return figure


def new_row(
    width: float, height: float, columns: int
) -> tuple["matplotlib.figure.Figure", list["matplotlib.axes.Axes"]]:
    """Make a figure with axes beside one another."""
    figure = new_figure(width, height)
    row = figure.subplots(1, columns, squeeze=False)[0].tolist()
    for axes in row:
        style_axes(axes)
    return figure, row


def style_axes(axes: "matplotlib.axes.Axes", *, small: bool = False) -> None:
    """Give the axes the plain look of all figures: few lines, a faint grid behind the data."""
    axes.set_facecolor("white")
    axes.set_axisbelow(True)
    axes.grid(color=RULE, linewidth=0.6 if small else 0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=SOFT, linewidth=0.8)
    axes.tick_params(colors=SOFT, labelsize=7 if small else 9, length=3, width=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(INK)


def unit_square(axes: "matplotlib.axes.Axes", *, small: bool = False) -> None:
    """Set both axes to [0, 1] and draw the diagonal, on which predictions are calibrated."""
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    ticks = [0, 0.5, 1] if small else np.linspace(0, 1, 6).tolist()
    texts = [f"{tick:g}" for tick in ticks]
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks)
    axes.set(xticklabels=texts, yticklabels=texts)


def draw_bars(axes: "matplotlib.axes.Axes", points: Points, *, small: bool = False) -> None:
    """Draw the accuracy of each bin as a bar, its gap to the confidence, and its whisker."""
    base = np.minimum(points.accuracy, points.confidence)
    gap = np.abs(points.accuracy - points.confidence)
    hue = np.where(points.over, OVER, UNDER).tolist()
    look: dict[str, Any] = {"width": points.right - points.left, "align": "edge"}
    look |= {"edgecolor": "white", "linewidth": 0.4 if small else 0.8}
    axes.bar(points.left, base, **look, color=_fade(BAR, points))
    axes.bar(points.left, gap, bottom=base, **look, color=_fade(hue, points, 0.55))
    # The accuracy at the mean confidence, with its interval.
    colors, x = _fade(INK, points), points.confidence
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
    faint = FAINT if points.few.any() else 1.0
    axes.fill_between(x, low, high, color=color, alpha=faint * alpha, linewidth=0, zorder=0.9)


def gap_legend(
    points: Sequence[Points], *, level: float, band: bool = False, terms: Terms = TOP_LABEL
) -> dict[str, Any]:
    """Handles by label for what the panels show, and nothing that they do not."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[str, Any] = {}
    if any(part.over.any() for part in points):
        entries[terms.over] = Patch(color=OVER, alpha=0.55, linewidth=0)
    if any((part.confidence < part.accuracy).any() for part in points):
        entries[terms.under] = Patch(color=UNDER, alpha=0.55, linewidth=0)
    whisker = Line2D([], [], color=INK, marker="|", markersize=9, linestyle="none")
    shade = Patch(color=INK, alpha=BAND, linewidth=0)
    entries[f"{100 * level:g}% interval"] = shade if band else whisker
    if any(part.few.any() for part in points):
        faint = Line2D([], [], color=INK, alpha=FAINT, marker="o", markersize=4)
        entries[f"under {FEW} examples"] = faint
    return entries


def patch(color: str) -> Any:
    """A filled handle for a legend."""
    from matplotlib.patches import Patch

    return Patch(color=color, linewidth=0)


def legend_below(
    figure: "matplotlib.figure.Figure", entries: Iterable[tuple[str, Any]], *, columns: int
) -> Any:
    """Put the legend, labels with their handles, under the axes, where it can cover nothing."""
    labels, handles = zip(*entries, strict=True)
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
    return legend


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
        bbox={"boxstyle": "round,pad=0.45", "facecolor": BOX, "edgecolor": "none"},
        **PLAIN,
    )
    if title:
        look: dict[str, Any] = {"fontsize": 11.5, "fontweight": "bold", **PLAIN}
        axes.set_title(shorten(title, longest), loc="left", pad=34, **look)


def save(figure: "matplotlib.figure.Figure", path: str | Path) -> Path:
    """Write a PNG, SVG or PDF, by the ending of `path`; all or nothing.

    The folder of `path` is made if its own parent is there. The same figure gives the same bytes.

    Returns:
        The path written.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"a figure must end in {', '.join(KINDS)}; got {str(path)!r}")
    from matplotlib import rc_context

    if not target.parent.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: no folder {target.parent.parent}")
    target.parent.mkdir(exist_ok=True)
    with replacing(target) as handle, rc_context({"svg.hashsalt": "calibrant"}):
        figure.savefig(handle, format=kind[1:], dpi=DPI, metadata=KINDS[kind])
    return target
