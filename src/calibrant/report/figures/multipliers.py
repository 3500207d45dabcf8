"""Multipliers of the classes along training, and by class frequency."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.figures.style import INK, new_figure, style_axes, write_title
from calibrant.report.method_state import multiplier_state
from calibrant.report.readings import Rows

if TYPE_CHECKING:
    import matplotlib.figure


def multiplier_figure(
    history: Rows, counts: Sequence[int], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw the multipliers and rho of `cals_alm`, or the penalty weights of `cals_hr`, by class.

    Left, along training, rare classes dark. Right, in the last epoch, against the number of
    training examples of the class. On a level line all classes would need the same smoothing.

    Args:
        history: rows of a training, one for each epoch.
        counts: training examples of each class, as `class_counts` in the record of a training.
        title: above the figure.
    """
    state = multiplier_state(history)
    if state is None:
        raise ValueError("need the history of a training with cals_alm or cals_hr")
    if state.classes != len(counts):
        raise ValueError(f"counts must hold {state.classes} classes, got {len(counts)}")
    values = np.array(state.along)
    figure = new_figure(4.3 + 4.1 * len(state.last), 3.9)
    left, *others = figure.subplots(1, 1 + len(state.last))
    frequency = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    ranks = frequency.argsort().argsort() / max(1, len(counts) - 1)
    colours = [str(0.15 + 0.6 * rank) for rank in ranks]
    for column, colour in zip(values.T, colours, strict=True):
        left.plot(np.arange(1, len(history) + 1), column, color=colour, linewidth=1.2)
    style_axes(left)
    left.set_ylim(0, 1.08 * max(1e-12, values.max()))
    left.locator_params(axis="x", integer=True)
    left.set_xlabel("epoch", color=INK)
    left.set_ylabel(f"{state.name} of each class", color=INK)
    write_title(left, title or None, f"{len(history)} epochs, rare classes dark", longest=80)
    for axes, (name, points) in zip(others, state.last.items(), strict=True):
        axes.scatter(frequency, points, c=colours, s=28, zorder=3)
        style_axes(axes)
        if frequency.max() > 3 * frequency.min():
            axes.set_xscale("log")
        axes.set_ylim(0, 1.08 * max(1e-12, *points))
        axes.set_xlabel("training examples of the class", color=INK)
        write_title(axes, None, f"{name}, last epoch: {min(points):.3g} to {max(points):.3g}")
    # The multiplier on the scale that it has along training.
    others[0].set_ylim(left.get_ylim())
    return figure
