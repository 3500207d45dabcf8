"""Gamma of a `gamma_net` along training, and by confidence."""

from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.figures.style import (
    BAND,
    INK,
    OVER,
    UNDER,
    legend_below,
    new_figure,
    style_axes,
    write_title,
)
from calibrant.report.method_state import GAMMA_COLUMNS, gamma_state
from calibrant.report.readings import Rows

if TYPE_CHECKING:
    import matplotlib.figure


def gamma_figure(history: Rows, *, title: str = "") -> "matplotlib.figure.Figure":
    """Draw gamma along training, and its mean by confidence in the last epoch.

    Left, the median gamma of each epoch, with a band from the 5 % to the 95 % quantile of the
    training examples. Right, the mean gamma of correctly and of wrongly classified examples by
    their confidence during training; means of fewer than 10 examples are left out. If the line on
    the right is flat, one gamma for all examples would do.

    Args:
        history: rows of a training with `gamma_net`, one for each epoch.
        title: above the figure.
    """
    state = gamma_state(history)
    if state is None:
        needed = ", ".join(GAMMA_COLUMNS)
        raise ValueError(f"need the history of a training with gamma_net, each row with {needed}")
    figure = new_figure(8.6, 4.2)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        style_axes(axes)
        axes.set_ylim(0, 1.08 * max(1e-12, state.highest))
    epochs = np.arange(1, len(history) + 1)
    left.fill_between(epochs, state.low, state.high, color=INK, alpha=BAND, linewidth=0)
    mark = "o" if len(history) < 30 else ""
    drawn = {"median, 5 % to 95 % of examples": left.plot(
        epochs, state.median, color=INK, linewidth=1.6, marker=mark, markersize=4
    )[0]}  # fmt: skip
    left.locator_params(axis="x", integer=True)
    for (name, means), hue, marker in zip(
        state.by_confidence.items(), (UNDER, OVER), "os", strict=True
    ):
        centres = (np.arange(len(means)) + 0.5) / max(1, len(means))
        (line,) = right.plot(centres, means, color=hue, marker=marker, markersize=4, linewidth=1.6)
        # With too few such examples in every bin there is no line to explain.
        if np.isfinite(means).any():
            drawn[name] = line
    left.set_xlabel("epoch", color=INK)
    left.set_ylabel("gamma", color=INK)
    right.set(xlim=(0, 1))
    right.set_xlabel("confidence", color=INK)
    right.set_ylabel("mean gamma", color=INK)
    write_title(left, title or None, f"{len(history)} epochs", longest=80)
    write_title(right, None, f"last epoch: gamma {state.mean:.3g} ± {state.std:.2g}")
    legend_below(figure, [*drawn.values()], [*drawn], columns=3)
    return figure
