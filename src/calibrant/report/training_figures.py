"""Curves along training, and how confident right and wrong answers are, for several models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.predictions import Predictions
from calibrant.report.panels import (
    INK,
    LIGHT_BAND,
    LINES,
    OVER,
    SERIES,
    UNDER,
    dress,
    legend_below,
    new_figure,
    shorten,
)

if TYPE_CHECKING:
    import matplotlib.figure

Rows = Sequence[Mapping[str, Any]]
# Columns of a history that are drawn unless others are asked for.
CURVES = {"val_ece": "ECE, val", "val_nll": "NLL, val", "loss": "training loss"}
# Histograms beside one another, and bins of each.
COLUMNS, BINS = 4, 15


def curves_figure(
    histories: Mapping[str, Rows | Sequence[Rows]],
    *,
    columns: Mapping[str, str] | None = None,
    title: str = "",
) -> "matplotlib.figure.Figure":
    """Draw what was measured after each epoch, a line for each training or method.

    Args:
        histories: by name, the rows of a training, or of several (seeds): then the mean, and a
            band from the lowest to the highest.
        columns: of the rows, with the names of their axes.
        title: above the figure.

    Examples:
        >>> rows = [{"val_ece": 0.2, "val_nll": 1.1, "loss": 0.9}]
        >>> len(curves_figure({"focal": rows}).axes)
        3
    """
    runs = {name: _runs(each) for name, each in histories.items()}
    wanted = CURVES if columns is None else columns
    missing = [key for key in wanted if not any(key in row for r in runs.values() for row in r[0])]
    if not runs or missing:
        raise ValueError(f"need histories with {list(wanted)}, got none with {missing}")
    figure = new_figure(3.6 * len(wanted), 3.5)
    panels = figure.subplots(1, len(wanted), squeeze=False)[0]
    handles = []
    for place, (name, held) in enumerate(runs.items()):
        look = {
            "color": SERIES[place % len(SERIES)],
            "linestyle": LINES[place // len(SERIES) % len(LINES)],
        }
        for axes, key in zip(panels, wanted, strict=True):
            length = min(map(len, held))
            values = np.array([[row.get(key, np.nan) for row in rows[:length]] for rows in held])
            epochs = np.arange(1, length + 1)
            (line,) = axes.plot(epochs, values.mean(0), linewidth=1.4, label=name, **look)
            if len(held) > 1:
                ends = values.min(0), values.max(0)
                axes.fill_between(epochs, *ends, color=look["color"], alpha=LIGHT_BAND, linewidth=0)
        handles.append(line)
    for axes, label in zip(panels, wanted.values(), strict=True):
        dress(axes)
        axes.set_xlabel("epoch", color=INK)
        axes.set_ylabel(label, color=INK)
        axes.locator_params(axis="x", integer=True, nbins=6)
    if title:
        _name(figure, title)
    legend_below(figure, handles, [shorten(name, 40) for name in runs], columns=4)
    return figure


def _runs(given: Rows | Sequence[Rows]) -> list[Rows]:
    """Histories of one name: of one training, or of several."""
    held: list[Any] = list(given)
    if not held:
        raise ValueError("a history must have at least one epoch")
    return [held] if isinstance(held[0], Mapping) else held


def confidence_figure(
    predictions: Predictions | Mapping[str, Predictions], *, bins: int = BINS, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw how often each confidence occurs, wrong answers below and right ones above.

    Args:
        predictions: of one model, or of several by name, which get the same scale.
        bins: of equal width.
        title: above the figure.
    """
    from matplotlib.patches import Patch

    named = {"": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    if not named:
        raise ValueError("need predictions of at least one model")
    columns = min(COLUMNS, len(named))
    lines = -(-len(named) // columns)
    figure = new_figure(max(4.4, 2.7 * columns), 0.9 + 2.3 * lines)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    edges = np.linspace(0, 1, bins + 1)
    for axes, (name, held) in zip(grid, named.items(), strict=False):
        right = np.asarray(held.correct, dtype=bool)
        shares = [
            np.histogram(held.confidence[part], bins=edges)[0] / len(held)
            for part in (~right, right)
        ]
        place: dict[str, Any] = {"width": 1 / bins, "align": "edge", "edgecolor": "white"}
        axes.bar(edges[:-1], shares[0], color=OVER, alpha=0.85, linewidth=0.5, **place)
        axes.bar(
            edges[:-1], shares[1], bottom=shares[0], color=UNDER, alpha=0.7, linewidth=0.5, **place
        )
        dress(axes, small=columns > 1)
        axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"])
        axes.set_xlabel("confidence", fontsize=8.5, color=INK)
        facts = f"accuracy {right.mean():.3f}, mean confidence {held.confidence.mean():.3f}"
        axes.set_title(
            f"{shorten(name or title, 34)}\n{facts}".strip(),
            loc="left",
            fontsize=8.5,
            color=INK,
            parse_math=False,
        )
    for axes in grid[len(named) :]:
        axes.remove()
    for axes in grid[: len(named) : columns]:
        axes.set_ylabel("share of examples", fontsize=8.5, color=INK)
    if title and "" not in named:
        _name(figure, title)
    parts = [Patch(color=UNDER, alpha=0.7), Patch(color=OVER, alpha=0.85)]
    legend_below(figure, parts, ["right", "wrong"], columns=2)
    return figure


def _name(figure: "matplotlib.figure.Figure", title: str) -> None:
    text = figure.suptitle(shorten(title, 90), x=0.01, ha="left", fontsize=11.5, color=INK)
    text.set(fontweight="bold", parse_math=False)
