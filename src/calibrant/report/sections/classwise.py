"""Calibration error by class, and accuracy and ECE by class frequency."""

import math

from calibrant.report.charts.dots import Dot, dot_rows
from calibrant.report.charts.heatmap import table_map
from calibrant.report.charts.svg import number_text, plot, plots, shape_legend
from calibrant.report.charts.tables import table
from calibrant.report.comparison import OF_CLASS
from calibrant.report.formatting import class_name
from calibrant.report.measured import NUMBERS, calibrated_test, class_errors, subsample
from calibrant.report.saved import Group
from calibrant.report.sections.panel import ACCURACY, ECE, STAGES, Panel, first_cells, seed_means

# Classes of a map; of more, the worst.
CLASSES = 20
PARTS = ("head", "medium", "tail")
Errors = dict[str, dict[str, float]]


def classwise(group: Group) -> Panel | None:
    """Calibration error of each class and each method."""
    maps, many = _of_rows(group), "mean over the seeds"
    if not maps:
        maps, step = _of_files(group)
        many = "first seed" if step == 1 else f"first seed, every {step}th example"
    if not maps:
        return None
    first = next(iter(maps.values()))
    names = list(dict.fromkeys(name for own in first.values() for name in own))
    classes = _worst(first, names)
    counts = _counts(group, names)
    held = [v for errors in maps.values() for own in errors.values() for v in own.values()]
    highest = max((v for v in held if math.isfinite(v)), default=1.0) or 1.0
    figures, tables = [], []
    for words, errors in maps.items():
        lines = [[own.get(name, math.nan) for name in classes] for own in errors.values()]
        title = f"Calibration error of each class, {words}"
        chart = table_map(
            lines,
            rows=list(errors),
            columns=classes,
            notes=[counts[name] for name in classes] if counts else (),
            highest=highest,
            title=title,
        )
        figures.append(plot(words.capitalize(), chart))
        texts = [[name, *map(number_text, each)] for name, each in zip(errors, lines, strict=True)]
        heads = [group.axis, *map(class_name, classes)]
        tables.append(table(heads, texts, caption=f"{title}, as numbers", folded=True))
    about = f"Calibration error of the probability of each class on the test split ({many})."
    about += " Below: training examples of the class." if counts else ""
    about += f" The {CLASSES} worst of {len(names)} classes." if len(names) > CLASSES else ""
    return Panel(
        "classes", "Calibration error by class", about, plots(figures, free=True) + "".join(tables)
    )


def _of_rows(group: Group) -> dict[str, Errors]:
    """Means over the seeds of what the study measured, as trained and scaled."""
    means = seed_means(group)
    # All classes, also those that never occur and so have no value: in the order of training.
    metrics = [m for m in dict.fromkeys(r["metric"] for r in group.rows) if m.startswith(OF_CLASS)]
    found: dict[str, Errors] = {}
    for calibrator, words in STAGES.items():
        for name in group.names:
            dots = {m: means.get((name, calibrator, "test", m), Dot()) for m in metrics}
            if any(math.isfinite(dot.value) for dot in dots.values()):
                own = {m.removeprefix(OF_CLASS): dot.value for m, dot in dots.items()}
                found.setdefault(words, {})[name] = own
    return found


def _of_files(group: Group) -> tuple[dict[str, Errors], int]:
    """Measured on the first seed, as trained and scaled; and which fraction of its examples."""
    found: dict[str, Errors] = {}
    largest = 1
    for calibrator, words in STAGES.items():
        for name, cell in first_cells(group).items():
            test = calibrated_test(cell, calibrator)
            if test is not None:
                part, step = subsample(test, NUMBERS)
                largest = max(largest, step)
                found.setdefault(words, {})[name] = class_errors(part)
    return found, largest


def _worst(errors: Errors, names: list[str]) -> list[str]:
    """Classes to show, in their order: those with the highest mean error if there are many."""

    def mean_error(name: str) -> float:
        values = [own[name] for own in errors.values() if math.isfinite(own.get(name, math.nan))]
        return math.fsum(values) / len(values) if values else 0.0

    worst = set(sorted(names, key=lambda name: -mean_error(name))[:CLASSES])
    return [name for name in names if name in worst]


def _counts(group: Group, names: list[str]) -> dict[str, str]:
    """Training examples of each class, where they differ much."""
    for cell in first_cells(group).values():
        counts = (cell.record or {}).get("class_counts") or []
        if len(counts) == len(names) and max(counts) >= 2 * min(counts):
            texts = [str(c) if c < 10000 else f"{c / 1000:.0f}k" for c in counts]
            return dict(zip(names, texts, strict=True))
    return {}


def long_tail(group: Group) -> Panel | None:
    """Accuracy and ECE of frequent, medium and rare classes."""
    means, figures = seed_means(group), []
    for (metric, calibrator), caption in (ACCURACY | ECE).items():
        rows = [
            (name, [means.get((name, calibrator, f"test: {p}", metric), Dot()) for p in PARTS])
            for name in group.names
        ]
        rows = [row for row in rows if any(math.isfinite(dot.value) for dot in row[1])]
        if rows:
            title, axis = f"{caption}, of head, medium and tail classes", caption.split(",")[0]
            figures.append(plot(caption, dot_rows(rows, parts=PARTS, x_name=axis, title=title)))
    if not figures:
        return None
    about = (
        "Test examples of classes with more than 100 (head), 20 to 100 (medium) and fewer than 20 "
        "(tail) training examples: mean over the seeds, with a line from lowest to highest."
    )
    colours = {f"dot s{at}": name for at, name in enumerate(PARTS, 1)}
    return Panel("tail", "Frequent and rare classes", about, shape_legend(colours) + plots(figures))
