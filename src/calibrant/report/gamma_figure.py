"""How a learnt gamma went along training, and how it goes with confidence."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.panels import (
    BAND,
    INK,
    OVER,
    UNDER,
    dress,
    head,
    legend_below,
    new_figure,
)
from calibrant.report.points import FEW

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

NEEDED = ("gamma_q05", "gamma_q50", "gamma_q95", "gamma_right", "count_right", "gamma_wrong")


def gamma_figure(
    history: Sequence[Mapping[str, Any]], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw gamma along training, and its mean against confidence in the last epoch.

    Left, the median gamma of each epoch within the middle nine tenths of the training examples.
    Right, the mean gamma of examples that were right, and of those that were wrong, by their
    confidence while training; means of fewer than 10 examples are left out. A flat line there says
    that one gamma for all would have done.

    Args:
        history: rows of a training with `gamma_net`, one for each epoch.
        title: above the figure.
    """
    if not history or any(name not in row for row in history for name in NEEDED):
        raise ValueError(
            f"need the history of a training with gamma_net, each row with {', '.join(NEEDED)}"
        )
    last = history[-1]
    figure = new_figure(8.6, 4.2)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        dress(axes)
    middle = _along(left, history)
    curves = [
        _against_confidence(right, last[f"gamma_{name}"], last[f"count_{name}"], hue, marker)
        for name, hue, marker in (("right", UNDER, "o"), ("wrong", OVER, "s"))
    ]
    highest = max(1e-12, *(row["gamma_q95"] for row in history), *last["gamma_right"])
    highest = max(highest, *last["gamma_wrong"])
    for axes in (left, right):
        axes.set_ylim(0, 1.08 * highest)
    left.set_xlabel("epoch", color=INK)
    left.set_ylabel("gamma", color=INK)
    right.set_xlabel("confidence", color=INK)
    right.set_ylabel("mean gamma", color=INK)
    right.set_xlim(0, 1)
    head(left, title or None, f"{len(history)} epochs", longest=80)
    head(right, None, f"last epoch: gamma {last['gamma_mean']:.3g} ± {last['gamma_std']:.2g}")
    # With too few such examples in every bin there is no line to explain.
    drawn = {
        name: curve
        for name, curve in zip(("right", "wrong"), curves, strict=True)
        if np.isfinite(curve.get_ydata()).any()
    }
    labels = ["median, 5 to 95 % of examples", *drawn]
    legend_below(figure, [middle, *drawn.values()], labels, columns=3)
    return figure


def _along(axes: "matplotlib.axes.Axes", history: Sequence[Mapping[str, Any]]) -> Any:
    """The median of every epoch, in a band."""
    epochs = np.arange(1, len(history) + 1)
    low, middle, high = (
        [row[f"gamma_{name}"] for row in history] for name in ("q05", "q50", "q95")
    )
    axes.fill_between(epochs, low, high, color=INK, alpha=BAND, linewidth=0)
    mark = "o" if len(history) < 30 else ""
    (line,) = axes.plot(epochs, middle, color=INK, linewidth=1.6, marker=mark, markersize=4)
    axes.locator_params(axis="x", integer=True)
    return line


def _against_confidence(
    axes: "matplotlib.axes.Axes",
    means: Sequence[float],
    counts: Sequence[float],
    hue: str,
    marker: str,
) -> Any:
    """The mean of every bin that holds enough examples, at the middle of the bin."""
    bins = len(means)
    shown = np.where(np.asarray(counts) >= FEW, np.asarray(means, dtype=np.float64), np.nan)
    middles = (np.arange(bins) + 0.5) / bins
    (line,) = axes.plot(middles, shown, color=hue, marker=marker, markersize=4, linewidth=1.6)
    return line
