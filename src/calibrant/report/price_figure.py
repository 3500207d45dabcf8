"""How the price of each class went along training, and how it goes with its frequency."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.panels import INK, dress, head, new_figure, shorten

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
    """Draw the multipliers of `cals_alm`, or the prices of `cals_hr`, class by class.

    Left, along training, rare classes dark; right, in the last epoch, against how many training
    examples a class has. If label smoothing had no reason to differ between classes, the points
    on the right would lie on a level line.

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
    figure = new_figure(8.6, 3.9)
    left, right = figure.subplots(1, 2)
    frequency = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    ranks = frequency.argsort().argsort() / max(1, len(counts) - 1)
    colours = [str(0.15 + 0.6 * rank) for rank in ranks]
    epochs = np.arange(1, len(history) + 1)
    for column, colour in zip(values.T, colours, strict=True):
        left.plot(epochs, column, color=colour, linewidth=1.2)
    right.scatter(frequency, values[-1], c=colours, s=28, zorder=3)
    if frequency.max() > 3 * frequency.min():
        right.set_xscale("log")
    for axes in (left, right):
        dress(axes)
        axes.set_ylim(0, 1.08 * max(1e-12, values.max()))
    left.locator_params(axis="x", integer=True)
    left.set_xlabel("epoch", color=INK)
    left.set_ylabel(f"{PRICES[found[0]]} of each class", color=INK)
    right.set_xlabel("training examples of the class", color=INK)
    head(left, shorten(title, 70) or None, f"{len(history)} epochs, rare classes dark")
    head(right, None, f"last epoch: {values[-1].min():.3g} to {values[-1].max():.3g}")
    return figure
