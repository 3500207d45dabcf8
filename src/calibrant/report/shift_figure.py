"""A metric over how strong each kind of shift is."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
from calibrant.report.seeds import Key, among, seed_values, summary
from calibrant.report.table import NONE

if TYPE_CHECKING:
    import matplotlib.figure

# "shift: blur 3": a kind and how strong it is.
SHIFTED = re.compile(r"shift: *(?P<kind>.*?)[ _=-]*(?P<severity>\d+(?:\.\d+)?)")
# Panels beside one another, and the width of each.
COLUMNS, WIDTH = 3, 3.4


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
