"""Where a chosen line fails: classes, rare classes, confidence, and trainings without a result."""

import math
from collections.abc import Sequence
from statistics import mean

from calibrant.predictions import Predictions
from calibrant.report.comparison import OF_CLASS, Comparison, Line, compare
from calibrant.report.differences import Reading
from calibrant.report.formatting import class_name, name_of, number, said, said_more
from calibrant.report.measured import calibrated_test, class_errors, excess
from calibrant.report.saved import Group, Row, SavedCell

# Classes that are named, and how many times the mean of all the first must be off to be.
NAMED, FACTOR = 3, 1.5
PARTS = {"head": "frequent", "medium": "middling", "tail": "rare"}


def weak_spots(group: Group, comparison: Comparison, line: Line | None) -> tuple[str, ...]:
    """What to know before the line is used: a few sentences, or none.

    Args:
        group: of a study.
        comparison: of the test split, from `compare`.
        line: the one chosen; None says nothing but which trainings and lines have no result.
    """
    found: list[str] = []
    if line is not None:
        own = [
            row
            for row in group.rows
            if (row[group.axis], row["calibrator"]) == (line.name, line.calibrator)
        ]
        found += [*_classes(group, line, own), *_rare(group, own), *_confidence(group, line)]
    return (*found, *_without_values(comparison), *unfinished(group.cells))


def unfinished(cells: Sequence[SavedCell]) -> list[str]:
    """One sentence for each way in which trainings ended without a result."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if not cell.done:
            found.setdefault((cell.status, cell.reason), []).append(cell.label)
    return [
        f"{status}{f', {len(labels)} trainings, the first is ' if labels[1:] else ': '}{labels[0]}"
        f"{f': {reason}' if reason else ''}"
        for (status, reason), labels in found.items()
    ]


def _classes(group: Group, line: Line, rows: Sequence[Row]) -> list[str]:
    """The classes whose probabilities are off the most, if some are more than the others."""
    errors, seed = _errors_of_rows(rows), ""
    if not errors:
        # Only studies of rare classes have such rows.
        test, seed = _of_file(group, line)
        errors = {} if test is None else class_errors(test)
    errors = {name: each for name, each in errors.items() if math.isfinite(each)}
    if len(errors) < 2:
        return []
    ordered = sorted(errors, key=lambda name: -errors[name])
    usual = mean(errors.values())
    worst = [name for name in ordered[:NAMED] if errors[name] > FACTOR * usual]
    off = [f"{class_name(name)} ({number(100 * errors[name], 1)} %)" for name in ordered[:NAMED]]
    ending = f"the mean classwise ECE is {number(100 * usual, 1)} %."
    if not worst:
        return [f"Of {line}{seed}, no class is far more off than others: most {off[0]}; {ending}"]
    return [
        f"Of {line}{seed}, the probabilities of these classes are off the most: "
        f"{', '.join(off[: len(worst)])}; {ending}"
    ]


def _errors_of_rows(rows: Sequence[Row]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        of_class = row["split"] == "test" and row["metric"].startswith(OF_CLASS)
        if of_class and row["value"] is not None:
            values.setdefault(row["metric"].removeprefix(OF_CLASS), []).append(row["value"])
    return {name: mean(each) for name, each in values.items()}


def _of_file(group: Group, line: Line) -> tuple[Predictions | None, str]:
    """Test predictions of the first seed, calibrated, and words that say which it is."""
    for cell in group.cells:
        if cell.done and cell.labels[group.axis] == line.name:
            return calibrated_test(cell, line.calibrator), f" in seed {cell.seed}"
    return None, ""


def _rare(group: Group, rows: Sequence[Row]) -> list[str]:
    """Accuracy and ECE of examples of frequent and of rare classes."""
    parts: dict[str, dict[str, Reading]] = {}
    for name in PARTS:
        lines = compare(rows, axis=group.axis, split=f"test: {name}").lines
        if lines and lines[0].readings:
            parts[name] = dict(lines[0].readings)
    found = []
    for metric in ("accuracy", "ece"):
        texts = [
            f"{said(metric, of[metric].interval)} for examples of {PARTS[name]} classes"
            for name, of in parts.items()
            if metric in of
        ]
        if len(texts) > 1:
            found.append(f"Its {name_of(metric)} is {', '.join(texts)}.")
    return found


def _confidence(group: Group, line: Line) -> list[str]:
    """Whether it says too much or too little, where its interval is clear."""
    reading = line.readings.get("overconfidence")
    test, seed = (None, "") if reading is not None else _of_file(group, line)
    bias = reading.interval if reading is not None else None if test is None else excess(test)
    if bias is None or not (bias.low > 0 or bias.high < 0):
        return []
    change = said_more("overconfidence", bias)
    kind = "over" if bias.value > 0 else "under"
    words = f"Beside its accuracy, its mean confidence{seed} is {change}: it is {kind}-confident."
    return [words]


def _without_values(comparison: Comparison) -> list[str]:
    """Lines that have no finite value of a metric in some seed."""
    found = []
    for line in comparison.lines:
        gone = [name for name in comparison.metrics if name not in line.readings]
        part = [name for name, each in line.readings.items() if each.missing]
        if gone and not line.readings:
            found.append(f"{line} has no result: it could not be fitted.")
        elif gone or part:
            names = ", ".join(name_of(name) for name in (*gone, *part))
            found.append(f"{line} has no finite {names} in some seed.")
    return found
