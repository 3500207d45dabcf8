"""Method state along training: gamma of a `gamma_net`, multipliers of the classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.figures import style as look
from calibrant.report.readings import GAMMA_COLUMNS, Rows, gamma_state, multiplier_state

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
    """
    state = gamma_state(history)
    if state is None:
        needed = ", ".join(GAMMA_COLUMNS)
        raise ValueError(f"need the history of a training with gamma_net, each row with {needed}")
    figure, (left, right) = look.new_row(8.6, 4.2, 2)
    for axes in (left, right):
        axes.set_ylim(0, 1.08 * max(1e-12, state.highest))
    epochs = np.arange(1, len(history) + 1)
    left.fill_between(epochs, state.low, state.high, color=look.INK, alpha=look.BAND, linewidth=0)
    mark = "o" if len(history) < 30 else ""
    median = left.plot(epochs, state.median, color=look.INK, lw=1.6, marker=mark, markersize=4)
    drawn = {"median, 5 % to 95 % of examples": median[0]}
    left.locator_params(axis="x", integer=True)
    marks = {"right": (look.UNDER, "o"), "wrong": (look.OVER, "s")}
    for name, means in state.by_confidence.items():
        hue, marker = marks[name]
        centres = (np.arange(len(means)) + 0.5) / max(1, len(means))
        (line,) = right.plot(centres, means, color=hue, marker=marker, markersize=4, linewidth=1.6)
        # With too few such examples in every bin there is no line to explain.
        if np.isfinite(means).any():
            drawn[name] = line
    left.set(xlabel="epoch", ylabel="gamma")
    right.set(xlim=(0, 1), xlabel="confidence", ylabel="mean gamma")
    look.write_title(left, title, f"{len(history)} epochs", longest=80)
    look.write_title(right, None, f"last epoch: gamma {state.mean:.3g} ± {state.std:.2g}")
    look.legend_below(figure, drawn.items(), columns=3)
    return figure


def multiplier_figure(
    history: Rows, counts: Sequence[int], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw the multipliers and rho of `cals_alm`, or the penalty weights of `cals_hr`, by class.

    Left, along training, rare classes dark. Right, in the last epoch, against the number of
    training examples of the class. A flat line means that all classes need the same smoothing.

    Args:
        history: rows of a training, one for each epoch.
        counts: training examples of each class, as `class_counts` in the record of a training.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    state = multiplier_state(history)
    if state is None:
        raise ValueError("need the history of a training with cals_alm or cals_hr")
    if state.classes != len(counts):
        raise ValueError(f"counts must hold {state.classes} classes, got {len(counts)}")
    values = np.array(state.along)
    panels = 1 + len(state.last)
    figure, (left, *others) = look.new_row(0.2 + 4.1 * panels, 3.9, panels)
    frequency = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    ranks = frequency.argsort().argsort() / max(1, len(counts) - 1)
    colours = [str(0.15 + 0.6 * rank) for rank in ranks]
    for column, colour in zip(values.T, colours, strict=True):
        left.plot(np.arange(1, len(history) + 1), column, color=colour, linewidth=1.2)
    top = 1.08 * max(1e-12, values.max())
    left.set(ylim=(0, top), xlabel="epoch", ylabel=f"{state.name} of each class")
    left.locator_params(axis="x", integer=True)
    look.write_title(left, title, f"{len(history)} epochs, rare classes dark", longest=80)
    for axes, (name, points) in zip(others, state.last.items(), strict=True):
        axes.scatter(frequency, points, c=colours, s=28, zorder=3)
        if frequency.max() > 3 * frequency.min():
            # Plain numbers, as few as fit: matplotlib's own labels lie on each other.
            subs = (1, 2, 5) if frequency.max() < 50 * frequency.min() else (1,)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=subs))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(ylim=(0, 1.08 * max(1e-12, *points)), xlabel="training examples of the class")
        look.write_title(axes, None, f"{name}, last epoch: {min(points):.3g} to {max(points):.3g}")
    # The multiplier on the scale that it has along training.
    others[0].set_ylim(0, top)
    return figure
