"""How the price of each class went along training, and how it goes with its frequency."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.panels import INK, dress, head, new_figure

if TYPE_CHECKING:
    import matplotlib.figure

# What a method calls its price for each class: CALS-ALM, CALS-HR.
PRICES = {"multipliers": "multiplier", "alpha": "price"}


def price_figure(
    history: Sequence[Mapping[str, Any]],
    counts: Sequence[int],
    *,
    title: str = "",
) -> "matplotlib.figure.Figure":
    """Draw the multipliers and rho of `cals_alm`, or the prices of `cals_hr`, class by class.

    Left, along training, rare classes dark; beside it, in the last epoch, against how many training
    examples a class has, and so rho where there is one. If label smoothing had no reason to differ
    between classes, the points would lie on a level line.

    Args:
        history: rows of a training, one for each epoch.
        counts: training examples of each class, as `class_counts` in the record of a training.
        title: above the figure.
    """
    found = [key for key in PRICES if history and isinstance(history[-1].get(key), list)]
    if not found:
        raise ValueError("need the history of a training with cals_alm or cals_hr")
    values = np.array([row[found[0]] for row in history], dtype=np.float64)
    if values.shape[1] != len(counts):
        raise ValueError(f"counts must hold {values.shape[1]} classes, got {len(counts)}")
    # What stands against the frequency: the price and, of CALS-ALM, rho.
    last = {PRICES[found[0]]: values[-1]}
    if "rho" in history[-1]:
        last["rho"] = np.array(history[-1]["rho"], dtype=np.float64)
    figure = new_figure(4.3 + 4.1 * len(last), 3.9)
    left, *others = figure.subplots(1, 1 + len(last))
    frequency = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    ranks = frequency.argsort().argsort() / max(1, len(counts) - 1)
    colours = [str(0.15 + 0.6 * rank) for rank in ranks]
    epochs = np.arange(1, len(history) + 1)
    for column, colour in zip(values.T, colours, strict=True):
        left.plot(epochs, column, color=colour, linewidth=1.2)
    dress(left)
    left.set_ylim(0, 1.08 * max(1e-12, values.max()))
    left.locator_params(axis="x", integer=True)
    left.set_xlabel("epoch", color=INK)
    left.set_ylabel(f"{PRICES[found[0]]} of each class", color=INK)
    head(left, title or None, f"{len(history)} epochs, rare classes dark", longest=80)
    for axes, (name, points) in zip(others, last.items(), strict=True):
        axes.scatter(frequency, points, c=colours, s=28, zorder=3)
        dress(axes)
        if frequency.max() > 3 * frequency.min():
            axes.set_xscale("log")
        axes.set_ylim(0, 1.08 * max(1e-12, points.max()))
        axes.set_xlabel("training examples of the class", color=INK)
        head(axes, None, f"{name}, last epoch: {points.min():.3g} to {points.max():.3g}")
    # The price on the scale that it has along training.
    others[0].set_ylim(left.get_ylim())
    return figure
