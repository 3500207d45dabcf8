"""How classes fare: the calibration error of each, and what frequent and rare ones get."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from calibrant.metrics import per_class_ece
from calibrant.predictions import Predictions
from calibrant.report.numbers import name_of
from calibrant.report.panels import (
    INK,
    MARKERS,
    SERIES,
    SOFT,
    dress,
    head,
    legend_below,
    new_figure,
    shorten,
)
from calibrant.report.seeds import among, seed_values, summary
from calibrant.report.table import NONE

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Shades of the map: the strongest still lets its number be read.
SHADES = ("#ffffff", "#e49659")
# Characters of a name at the side.
NAME = 34
PARTS = {
    "test: head": "head: over 100 training examples",
    "test: medium": "medium: 20 to 100",
    "test: tail": "tail: under 20",
}


def class_figure(
    predictions: Predictions | Mapping[str, Predictions],
    *,
    bins: int = 15,
    most: int = 20,
    title: str = "",
) -> "matplotlib.figure.Figure":
    """Draw the calibration error of each class, a line of fields for each model.

    The number in a field is the entry of `per_class_ece`; a class without an example has a dash.

    Args:
        predictions: of one model, or of several by name, with the same classes.
        bins: of equal width.
        most: columns at most; of more classes the worst, by their mean over the models.
        title: above the figure.
    """
    from matplotlib.colors import LinearSegmentedColormap

    named = {"": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    names = _classes(named)
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    errors = np.stack([per_class_ece(each, bins=bins) for each in named.values()])
    shown = _worst(errors, most)
    heads = [shorten(names[at], 18) for at in shown]
    turned = max(map(len, heads)) > 5
    left = _inches(named)
    width = left + max(3.8, 1.2 + 0.44 * len(shown))
    below = 0.085 * max(map(len, heads)) if turned else 0.3
    figure = new_figure(width, 1.1 + 0.3 * len(named) + below)
    axes = figure.add_subplot()
    values = np.ma.masked_invalid(errors[:, shown])
    highest = float(np.nanmax(errors)) or 1.0
    look: dict[str, Any] = {"vmin": 0, "vmax": highest, "aspect": "auto"}
    shades = LinearSegmentedColormap.from_list("error", SHADES)
    drawn = axes.imshow(values, cmap=shades, interpolation="nearest", **look)
    for (line, column), value in np.ndenumerate(errors[:, shown]):
        text = "-" if math.isnan(value) else f"{value:.3f}"
        axes.text(column, line, text, ha="center", va="center", fontsize=8, color=INK)
    axes.set_xticks(range(len(shown)), heads, rotation=90 if turned else 0, parse_math=False)
    axes.set_yticks(
        range(len(named)), [shorten(name, NAME) for name in named], color=INK, parse_math=False
    )
    axes.tick_params(colors=SOFT, labelsize=9, length=0, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # White lines between the fields.
    axes.set_xticks(np.arange(len(shown) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(named) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    if all(each.isdigit() for each in heads):
        axes.set_xlabel("class", color=INK)
    bar = figure.colorbar(drawn, ax=axes, pad=0.02, aspect=12)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=SOFT, labelsize=8, length=3, width=0.8)
    bar.ax.locator_params(nbins=4)
    every = f"all {len(shown)} classes"
    some = f"the {len(shown)} worst of {len(names)} classes"
    facts = f"calibration error of {every if len(shown) == len(names) else some}"
    head(axes, _fitting(title, width - left), facts)
    return figure


def _inches(names: Iterable[str]) -> float:
    """How wide the names at the side are."""
    return 0.085 * min(NAME, max(map(len, names)))


def _fitting(title: str, inches: float) -> str | None:
    """What a title may say in so many inches; None if it is empty."""
    return shorten(title, int(9 * inches) - 3) or None


def _classes(named: Mapping[str, Predictions]) -> list[str]:
    """The names that all models give to their classes, or numbers."""
    if not named:
        raise ValueError("need predictions of at least one model")
    counts = {name: each.classes for name, each in named.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"models must have the same classes, got numbers of them {counts}")
    given = list(dict.fromkeys(p.class_names for p in named.values() if p.class_names))
    if len(given) > 1:
        raise ValueError(
            f"models must name their classes alike, got {list(given[0])} and {list(given[1])}"
        )
    return list(given[0]) if given else [str(at) for at in range(next(iter(counts.values())))]


def _worst(errors: Float64[np.ndarray, "m k"], most: int) -> list[int]:
    """Classes to show, in their order: the highest mean errors if there are too many."""
    if errors.shape[1] <= most:
        return list(range(errors.shape[1]))
    there = np.isfinite(errors)
    means = np.where(there, errors, 0).sum(0) / np.maximum(there.sum(0), 1)
    chosen = np.argsort(np.where(there.any(0), -means, np.inf), kind="stable")[:most]
    return sorted(chosen.tolist())


def frequency_figure(
    rows: Iterable[Any], *, calibrator: str = "temperature", title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw accuracy and ECE of frequent, middling and rare classes, method by method.

    Points are means over the seeds, lines go from the lowest to the highest. Accuracy after a
    calibrator has a panel only if it differs from that before.

    Args:
        rows: of a study, as `calibrant.study.rows.read_rows` gives them, or the lines of its
            `rows.jsonl` as dicts; those of the splits "test: head", "test: medium" and "test: tail"
            are drawn.
        calibrator: which to show beside the networks as trained; "none" for these alone.
        title: above the figure.
    """
    held = {key: v for key, v in seed_values(rows).items() if key.split in PARTS}
    if not held:
        raise ValueError(
            f"need rows of the splits {', '.join(PARTS)}, which a study has if its training set "
            "is long-tailed"
        )
    among("calibrator", calibrator, [key.calibrator for key, values in held.items() if values])
    panels = {
        (metric, stage): {
            (key.name, key.split): values
            for key, values in held.items()
            if (key.metric, key.calibrator) == (metric, stage)
        }
        for metric in ("accuracy", "ece")
        for stage in dict.fromkeys((NONE, calibrator))
    }
    if panels["accuracy", NONE] == panels["accuracy", calibrator] and calibrator != NONE:
        del panels["accuracy", calibrator]
    panels = {key: of for key, of in panels.items() if any(of.values())}
    if not panels:
        raise ValueError("need rows of the metrics accuracy or ece")
    names = list(dict.fromkeys(key.name for key in held))
    left = _inches(names)
    width = max(6.6, left + 2.6 * len(panels))
    figure = new_figure(width, 1.9 + 0.42 * len(names))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, ((metric, stage), of) in zip(grid, panels.items(), strict=True):
        dress(axes)
        handles = [_dots(axes, of, names, at) for at in range(len(PARTS))]
        # The same scale before and after.
        beside = [own for (name, _), own in panels.items() if name == metric]
        highest = max(value for own in beside for values in own.values() for value in values)
        axes.set_xlim(0, 1.06 * max(1e-12, highest))
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel(name_of(metric), color=INK)
        words = "as trained" if stage == NONE else f"after {shorten(stage, 22)}"
        shown = _fitting(title, width - left) if axes is grid[0] else None
        head(axes, shown, f"{name_of(metric)}, {words}")
    grid[0].set_yticks(range(len(names)), [shorten(n, NAME) for n in names], parse_math=False)
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    labels = list(PARTS.values())
    if any(len(values) > 1 for of in panels.values() for values in of.values()):
        handles += grid[0].plot([], [], color=SOFT, linewidth=1.6)
        labels.append("lowest to highest seed")
    legend_below(figure, handles, labels, columns=4)
    return figure


def _dots(
    axes: "matplotlib.axes.Axes",
    values: Mapping[tuple[str, str], list[float]],
    names: list[str],
    part: int,
) -> Any:
    """Means of one part of the classes, each a little above or below the line of its name."""
    split, hue = list(PARTS)[part], SERIES[part]
    read = np.array([summary(values.get((name, split), [])) for name in names])
    y = np.arange(len(names)) + 0.22 * (part - 1)
    axes.hlines(y, read[:, 1], read[:, 2], colors=hue, linewidth=1.6, alpha=0.7, zorder=3)
    return axes.scatter(read[:, 0], y, s=26, c=hue, marker=MARKERS[part], linewidths=0, zorder=4)
