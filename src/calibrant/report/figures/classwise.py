"""Reliability diagrams of every class, as small multiples."""

import math
from typing import TYPE_CHECKING

import numpy as np

from calibrant.metrics import BinSums, class_sums
from calibrant.metrics.bins import Bins
from calibrant.predictions import Predictions
from calibrant.report.figures import style as look
from calibrant.report.reliability_points import points_of

if TYPE_CHECKING:
    import matplotlib.figure

SIDE, COLUMNS = 1.75, 4


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
        level: of the Wilson intervals.
        title: a line above the figure.
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
    look.legend_below(figure, look.gap_legend(points, level=level).items(), columns=4)
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
