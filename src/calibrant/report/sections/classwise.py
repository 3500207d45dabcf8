"""Which classes are badly calibrated, and how rare ones fare."""

import math
from collections.abc import Sequence

from calibrant.calibrators import TemperatureScaling
from calibrant.report.charts.dots import Dot, dot_rows
from calibrant.report.charts.heatmap import table_map
from calibrant.report.charts.svg import key, plot, shown
from calibrant.report.charts.tables import table
from calibrant.report.comparison import OF_CLASS
from calibrant.report.formatting import class_name
from calibrant.report.measured import NUMBERS, class_errors, sampled
from calibrant.report.saved import Group, Row
from calibrant.report.sections.firsts import firsts
from calibrant.report.sections.panel import STAGES, Panel, by_name, first_cells, plots

# Classes of a map; of more, the worst.
CLASSES = 20
PARTS = ("head", "medium", "tail")
Errors = dict[str, dict[str, float]]


def classwise(group: Group) -> Panel | None:
    """Calibration error of each class and each method."""
    maps = {
        words: errors
        for calibrator, words in STAGES.items()
        if (errors := _of_rows(group, calibrator))
    }
    many = "mean over the seeds"
    if not maps:
        maps, step = _of_files(group)
        many = "first seed" if step == 1 else f"first seed, every {step}-th example"
    if not maps:
        return None
    classes, left_out = _chosen(next(iter(maps.values())))
    counts = _counts(group, next(iter(maps.values())))
    values = [v for errors in maps.values() for own in errors.values() for v in own.values()]
    highest = max((v for v in values if math.isfinite(v)), default=1.0) or 1.0
    figures, tables = [], []
    heads = [group.axis, *map(class_name, classes)]
    for words, errors in maps.items():
        lines = [[own.get(name, math.nan) for name in classes] for own in errors.values()]
        chart = table_map(
            lines,
            rows=list(errors),
            columns=classes,
            notes=[_thousands(counts[name]) for name in classes] if counts else (),
            highest=highest,
            title=f"Calibration error of each class, {words}",
            about=_worst(errors, classes),
        )
        figures.append(plot(words.capitalize(), chart))
        texts = [[name, *map(shown, each)] for name, each in zip(errors, lines, strict=True)]
        caption = f"Calibration error of each class, {words}, as numbers"
        tables.append(table(heads, texts, caption=caption, folded=True))
    about = (
        f"Calibration error of the probability of each class on test, {many}: the stronger the "
        "colour, the worse"
    )
    about += "; below, training examples of the class" if counts else ""
    about += f"; the {CLASSES} worst of {CLASSES + left_out} classes" if left_out else ""
    return Panel("classes", "Class by class", f"{about}.", plots(figures) + "".join(tables))


def _of_rows(group: Group, calibrator: str) -> Errors:
    """Means over the seeds of what the study measured."""
    rows = [
        row
        for row in group.rows
        if row["split"] == "test"
        and row["calibrator"] == calibrator
        and row["metric"].startswith(OF_CLASS)
    ]
    # All classes, also those that never occur and so have no value: in the order of training.
    classes = list(dict.fromkeys(row["metric"].removeprefix(OF_CLASS) for row in rows))
    found: Errors = {}
    for name, own in by_name(group, rows).items():
        by_class: dict[str, list[float]] = {each: [] for each in classes}
        for row in own:
            by_class[row["metric"].removeprefix(OF_CLASS)].append(row["value"])
        found[name] = {c: math.fsum(v) / len(v) if v else math.nan for c, v in by_class.items()}
    return found


def _of_files(group: Group) -> tuple[dict[str, Errors], int]:
    """Measured here, of the first seed, as trained and scaled; and how many-th examples of it."""
    found: dict[str, Errors] = {words: {} for words in STAGES.values()}
    before, after = found.values()
    largest = 1
    for name, cell in first_cells(group).items():
        test = cell.test
        if test is None:
            continue
        part, step = sampled(test, NUMBERS)
        largest = max(largest, step)
        before[name] = class_errors(part)
        temperature = firsts(group)[name].temperature
        if temperature is not None:
            scaling = TemperatureScaling(temperature=temperature, classes=part.classes)
            after[name] = class_errors(part.map(scaling))
    return {words: errors for words, errors in found.items() if errors}, largest


def _chosen(errors: Errors) -> tuple[list[str], int]:
    """Classes to show, in their order, and how many are left out."""
    names = list(dict.fromkeys(name for own in errors.values() for name in own))
    if len(names) <= CLASSES:
        return names, 0

    def badness(name: str) -> float:
        values = [own[name] for own in errors.values() if math.isfinite(own.get(name, math.nan))]
        return -math.fsum(values) / len(values) if values else 0.0

    worst = set(sorted(names, key=badness)[:CLASSES])
    return [name for name in names if name in worst], len(names) - CLASSES


def _counts(group: Group, errors: Errors) -> dict[str, int]:
    """Training examples of each class, where they differ much."""
    names = next(iter(errors.values()))
    for cell in first_cells(group).values():
        counts = (cell.record or {}).get("class_counts") or []
        if len(counts) == len(names) and max(counts) >= 2 * min(counts):
            return dict(zip(names, counts, strict=True))
    return {}


def _thousands(count: int) -> str:
    return str(count) if count < 10000 else f"{count / 1000:.0f}k"


def _worst(errors: Errors, classes: Sequence[str]) -> str:
    fields = [
        (own[name], method, name)
        for method, own in errors.items()
        for name in classes
        if math.isfinite(own.get(name, math.nan))
    ]
    if not fields:
        return ""
    value, method, name = max(fields)
    return f"Worst: {method}, {class_name(name)}, {value:.4f}."


def long_tail(group: Group) -> Panel | None:
    """Accuracy and ECE of frequent, middling and rare classes."""
    figures = []
    for metric, title in (("accuracy", "accuracy"), ("ece", "ECE")):
        for calibrator, words in STAGES.items():
            if metric == "accuracy" and calibrator != "none":
                continue
            rows = [
                (name, [_over_seeds(own, part) for part in PARTS])
                for name, own in by_name(group, _of_parts(group, metric, calibrator)).items()
            ]
            if rows:
                caption = f"{title}, {words}" if metric == "ece" else title
                chart = dot_rows(
                    rows,
                    parts=PARTS,
                    x_name=title,
                    title=f"{caption}, of head, medium and tail classes",
                )
                figures.append(plot(caption[0].upper() + caption[1:], chart))
    if not figures:
        return None
    about = (
        "Test examples of classes with more than 100, 20 to 100 and fewer than 20 training "
        "examples: mean over the seeds, with a line from the lowest to the highest."
    )
    colours = {f"dot s{at}": name for at, name in enumerate(PARTS, 1)}
    return Panel("tail", "Frequent and rare classes", about, key(colours) + plots(figures))


def _of_parts(group: Group, metric: str, calibrator: str) -> list[Row]:
    splits = {f"test: {part}" for part in PARTS}
    return [
        row
        for row in group.rows
        if row["split"] in splits and row["metric"] == metric and row["calibrator"] == calibrator
    ]


def _over_seeds(rows: Sequence[Row], part: str) -> Dot:
    values = [row["value"] for row in rows if row["split"] == f"test: {part}"]
    if not values:
        return Dot(math.nan)
    mean = math.fsum(values) / len(values)
    return Dot(mean, min(values), max(values)) if len(values) > 1 else Dot(mean)
