"""ECE and accuracy on shifted data, by severity."""

import math
import re
from collections.abc import Sequence

from calibrant.report.charts.dots import Dot
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import MOST, legend, number_text, plot, plots
from calibrant.report.charts.tables import table
from calibrant.report.saved import Group
from calibrant.report.sections.panel import ACCURACY, ECE, Key, Panel, seed_means

# Splits that every study has, and parts of them by class frequency.
USUAL = re.compile(r"(val|test)(: (head|medium|tail))?")
# "shift: blur 3": a kind and a severity.
SHIFTED = re.compile(r"(?:shift: *)?(?P<kind>.*?)[ _=-]*(?P<severity>\d+(?:\.\d+)?)")
CHARTS = ECE | ACCURACY


def shift(group: Group) -> Panel | None:
    """Charts over the severity of each kind of shift, and a table of other splits."""
    splits = dict.fromkeys(row["split"] for row in group.rows)
    kinds: dict[str, dict[float, str]] = {}
    others = []
    for split in [each for each in splits if not USUAL.fullmatch(each)]:
        found = SHIFTED.fullmatch(split)
        if found is None or not found["kind"]:
            others.append(split)
        else:
            kinds.setdefault(found["kind"], {0.0: "test"})[float(found["severity"])] = split
    means, html = seed_means(group), ""
    for kind, by_severity in kinds.items():
        # One severity is no curve.
        if len(by_severity) < 3:
            others += [split for split in by_severity.values() if split != "test"]
            continue
        charts = _charts(kind, dict(sorted(by_severity.items())), group.names[:MOST], means)
        html += plots(charts) if charts else ""
    html += legend(group.names[:MOST]) if html else ""
    html += _table(others, group, means)
    if not html:
        return None
    about = (
        "The same networks on shifted test data, mean over the seeds; severity 0 is the test split "
        "itself. Temperatures are fitted to the validation split, which is not shifted."
    )
    return Panel("shift", "Under distribution shift", about, html)


def _charts(
    kind: str, splits: dict[float, str], names: Sequence[str], means: dict[Key, Dot]
) -> list[str]:
    figures = []
    for (metric, calibrator), words in CHARTS.items():
        series = []
        for name in names:
            dots = [means.get((name, calibrator, s, metric), Dot()) for s in splits.values()]
            middle, low, high = zip(*((dot.value, dot.low, dot.high) for dot in dots), strict=True)
            series.append(Series(name, list(splits), middle, low, high))
        if any(math.isfinite(v) for each in series for v in each.y):
            title, zero = f"{words}: {kind}", metric == "ece"
            chart = line_chart(series, title, "severity", zero=zero, plain=True, whole=False)
            figures.append(plot(title, chart))
    return figures


def _table(splits: Sequence[str], group: Group, means: dict[Key, Dot]) -> str:
    heads = {
        f"{split}: {words}": (calibrator, split, metric)
        for split in splits
        for (metric, calibrator), words in CHARTS.items()
        if any((name, calibrator, split, metric) in means for name in group.names)
    }
    lines = [
        [name, *(number_text(means.get((name, *key), Dot()).value) for key in heads.values())]
        for name in group.names
    ]
    caption = "Other splits, mean over the seeds"
    return table([group.axis, *heads], lines, caption=caption) if heads else ""
