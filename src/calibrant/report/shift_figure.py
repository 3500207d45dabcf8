"""A metric over how strong each kind of shift is; and the values of all seeds from rows."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.report.numbers import name_of
from calibrant.report.panels import (
    INK,
    LIGHT_BAND,
    LINES,
    MARKERS,
    SERIES,
    dress,
    head,
    legend_below,
    new_figure,
    shorten,
)
from calibrant.report.saved import PARTS

if TYPE_CHECKING:
    import matplotlib.figure

# The predictions as the network makes them.
NONE = "none"
NEEDED = (*PARTS, "seed", "calibrator", "split", "metric", "value")
# "shift: blur 3": a kind and how strong it is.
SHIFTED = re.compile(r"shift: *(?P<kind>.*?)[ _=-]*(?P<severity>\d+(?:\.\d+)?)")
# Panels beside one another, and the width of each.
COLUMNS, WIDTH = 3, 3.4


class Key(NamedTuple):
    """What the seeds of a reading share."""

    name: str
    calibrator: str
    split: str
    metric: str


def shift_figure(
    rows: Iterable[Any], *, metric: str = "ece", calibrator: str = NONE, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw a metric over the severity of a shift, a panel for each kind and a line for each method.

    Lines are means over the seeds, bands go from the lowest to the highest. Severity 0 is the test
    split as it is. A kind needs two severities or more beside it; other splits are left out.

    Args:
        rows: of a study, as `calibrant.study.rows.read_rows` gives them, or the lines of its
            `rows.jsonl` as dicts; those of "test" and of splits such as "shift: blur 3" are drawn.
        metric: of the rows.
        calibrator: after which one; "none" is as trained.
        title: above the figure.
    """
    held = seed_values(rows)
    kinds = _kinds(key.split for key in held)
    if not kinds:
        raise ValueError(
            "need rows of a kind of shift at two severities or more, such as the splits "
            '"shift: blur 1" and "shift: blur 3"'
        )
    drawn = {split for splits in kinds.values() for split in splits.values()} - {"test"}
    shifted = [key for key in held if key.split in drawn]
    among("metric", metric, [key.metric for key in shifted if held[key]])
    among("calibrator", calibrator, [key.calibrator for key in shifted if held[key]])
    names = list(dict.fromkeys(key.name for key in shifted))
    columns = 2 if len(kinds) == 4 else min(COLUMNS, len(kinds))
    lines = -(-len(kinds) // columns)
    width = max(4.8, WIDTH * columns)
    beside = max(1, min(4, int(width / (0.5 + 0.075 * min(40, max(map(len, names)))))))
    legend = 0.2 * -(-len(names) // beside)
    figure = new_figure(width, 0.7 + 2.8 * lines + legend)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for at, (axes, (kind, splits)) in enumerate(zip(grid, kinds.items(), strict=False)):
        dress(axes)
        handles = []
        for place, name in enumerate(names):
            keys = [Key(name, calibrator, split, metric) for split in splits.values()]
            read = np.array([summary(held.get(key, [])) for key in keys])
            hue = SERIES[place % len(SERIES)]
            axes.fill_between(
                list(splits), read[:, 1], read[:, 2], color=hue, alpha=LIGHT_BAND, linewidth=0
            )
            handles += axes.plot(
                list(splits),
                read[:, 0],
                color=hue,
                linestyle=LINES[place // len(SERIES) % len(LINES)],
                linewidth=1.4,
                # The mark changes with every colour and once more when the colours start again.
                marker=MARKERS[(place + place // len(SERIES)) % len(MARKERS)],
                markersize=4,
            )
        if len(splits) <= 8:
            axes.set_xticks(list(splits), [f"{severity:g}" for severity in splits])
        axes.tick_params(labelleft=True)
        axes.set_xlabel("severity", color=INK)
        if at % columns == 0:
            axes.set_ylabel(name_of(metric), color=INK)
        stage = "as trained" if calibrator == NONE else f"after {calibrator}"
        facts = shorten(f"{kind}, {stage}", 40)
        head(axes, shorten(title, int(9 * width) - 9) or None if not at else None, facts)
    if metric != "accuracy" and all(axes.dataLim.y0 >= 0 for axes in grid[: len(kinds)]):
        grid[0].set_ylim(bottom=0)
    for axes in grid[len(kinds) :]:
        axes.remove()
    legend_below(figure, handles, [shorten(name, 40) for name in names], columns=beside)
    return figure


def _kinds(splits: Iterable[str]) -> dict[str, dict[float, str]]:
    """Splits of each kind of shift by severity, from "test" on."""
    kinds: dict[str, dict[float, str]] = {}
    for split in dict.fromkeys(splits):
        found = SHIFTED.fullmatch(split)
        if found is not None and found["kind"]:
            kinds.setdefault(found["kind"], {})[float(found["severity"])] = split
    return {
        kind: dict(sorted({0.0: "test", **by_severity}.items()))
        for kind, by_severity in kinds.items()
        if len(by_severity) > 1
    }


def seed_values(rows: Iterable[Any]) -> dict[Key, list[float]]:
    """Values of all seeds, in the order of the rows; none where no seed has a value.

    A name is what trainings differ in: the method, or whichever of dataset, model, optimizer and
    method have more than one value.
    """
    held = [row if isinstance(row, Mapping) else getattr(row, "__dict__", {}) for row in rows]
    if not held or any(name not in row for row in held for name in NEEDED):
        raise ValueError(f"need rows of a study, each with {', '.join(NEEDED)}")
    parts = [part for part in PARTS if len({row[part] for row in held}) > 1] or ["method"]
    found: dict[Key, dict[int, float]] = {}
    for row in held:
        name = ", ".join(row[part] for part in parts)
        key = Key(name, row["calibrator"], row["split"], row["metric"])
        seeds = found.setdefault(key, {})
        if row["value"] is None or not math.isfinite(row["value"]):
            continue
        if row["seed"] in seeds:
            raise ValueError(f"two rows of {', '.join(key)}, seed {row['seed']}: give one study's")
        seeds[row["seed"]] = row["value"]
    return {key: list(seeds.values()) for key, seeds in found.items()}


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, lowest and highest; NaN where there is no value."""
    if not values:
        return (math.nan,) * 3
    return math.fsum(values) / len(values), min(values), max(values)


def among(what: str, given: str, known: Iterable[str]) -> None:
    """Refuse a name that no row has."""
    names = list(dict.fromkeys(known))
    if given not in names:
        raise ValueError(f"{what} must be one of {names}, which the rows have; got {given!r}")
