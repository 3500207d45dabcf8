"""Calibration on data that was shifted, more and more."""

import math
import re
from collections.abc import Sequence

from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import MOST, legend, plot, shown
from calibrant.report.charts.tables import table
from calibrant.report.saved import Group, Row
from calibrant.report.sections.panel import STAGES, Panel, plots

# Splits that every study has, and parts of them by the frequency of the class.
USUAL = re.compile(r"(val|test)(: (head|medium|tail))?")
# "shift: blur 3": a kind and how strong it is.
SHIFTED = re.compile(r"(?:shift: *)?(?P<kind>.*?)[ _=-]*(?P<severity>\d+(?:\.\d+)?)")
METRICS = {"ece": ("ECE", True), "accuracy": ("Accuracy", False)}


def shift(group: Group) -> Panel | None:
    """ECE and accuracy over how strong each kind of shift is; a table of other splits."""
    splits = [
        s for s in dict.fromkeys(row["split"] for row in group.rows) if not USUAL.fullmatch(s)
    ]
    kinds: dict[str, dict[float, str]] = {}
    others = []
    for split in splits:
        found = SHIFTED.fullmatch(split)
        if found is None or not found["kind"]:
            others.append(split)
        else:
            kinds.setdefault(found["kind"], {})[float(found["severity"])] = split
    for kind, by_severity in list(kinds.items()):
        if len(by_severity) < 2:
            others += kinds.pop(kind).values()
        else:
            by_severity.setdefault(0.0, "test")
    means = _means(group)
    names = group.names[:MOST]
    figures = [
        _charts(kind, dict(sorted(by_severity.items())), names, means)
        for kind, by_severity in kinds.items()
    ]
    html = "".join(map(plots, filter(None, figures)))
    html += legend(names) if html else ""
    html += _table(others, group, means) if others else ""
    if not html:
        return None
    about = (
        "The same networks on shifted data, mean over the seeds; 0 is the test split as it is. "
        "Temperatures are fitted to val, which is not shifted."
    )
    return Panel("shift", "Under shift", about, html)


Means = dict[tuple[str, str, str, str], tuple[float, float, float]]


def _means(group: Group) -> Means:
    """Mean, lowest and highest over the seeds, by name, calibrator, split and metric."""
    held: dict[tuple[str, str, str, str], list[float]] = {}
    for row in group.rows:
        if row["value"] is not None and row["metric"] in METRICS:
            held.setdefault(_key(group, row), []).append(row["value"])
    return {key: (math.fsum(v) / len(v), min(v), max(v)) for key, v in held.items()}


def _key(group: Group, row: Row) -> tuple[str, str, str, str]:
    return row[group.axis], row["calibrator"], row["split"], row["metric"]


def _charts(kind: str, splits: dict[float, str], names: Sequence[str], means: Means) -> list[str]:
    figures = []
    none = (math.nan,) * 3
    for metric, (word, zero) in METRICS.items():
        for calibrator, when in STAGES.items():
            if metric == "accuracy" and calibrator != "none":
                continue
            series = []
            for name in names:
                read = [means.get((name, calibrator, s, metric), none) for s in splits.values()]
                middle, low, high = ([each[at] for each in read] for at in range(3))
                series.append(Series(name, list(splits), middle, low, high))
            if any(math.isfinite(v) for each in series for v in each.y):
                title = f"{word}, {kind}" + ("" if metric == "accuracy" else f", {when}")
                chart = line_chart(
                    series, title=title, x_name="severity", zero=zero, plain=True, whole=False
                )
                figures.append(plot(title, chart))
    return figures


def _table(splits: Sequence[str], group: Group, means: Means) -> str:
    head = [
        (split, calibrator, metric)
        for split in splits
        for metric in METRICS
        for calibrator in STAGES
        if any((name, calibrator, split, metric) in means for name in group.names)
        and not (metric == "accuracy" and calibrator != "none")
    ]
    if not head:
        return ""
    titles = [
        f"{split}: {METRICS[metric][0]}" + ("" if metric == "accuracy" else f", {STAGES[of]}")
        for split, of, metric in head
    ]
    lines = [
        [name, *(shown(means.get((name, of, split, m), (None,))[0]) for split, of, m in head)]
        for name in group.names
    ]
    return table([group.axis, *titles], lines, caption="Other splits, mean over the seeds")
