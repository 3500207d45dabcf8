"""Weak spots of the recommended line: classes, confidence; and runs without a result."""

import math
from collections.abc import Sequence
from statistics import mean

from calibrant.predictions import Predictions
from calibrant.report.comparison import OF_CLASS, Combination, Comparison, compare
from calibrant.report.formatting import class_name, difference_text, name_of, number, value_text
from calibrant.report.measured import calibrated_test, class_errors, excess
from calibrant.report.saved import Group, Row, SavedCell

# Classes that are named, if their error is so many times the mean of all.
NAMED, FACTOR = 3, 1.5
PARTS = {"head": "frequent", "medium": "medium", "tail": "rare"}


def weak_spots(group: Group, comparison: Comparison, line: Combination | None) -> tuple[str, ...]:
    """What to know before the recommended combination is used: a few sentences, or none.

    Without a combination they only say which runs and combinations have no result.
    """
    found: list[str] = []
    if line is not None:
        chosen = (line.name, line.calibrator)
        own = [row for row in group.rows if (row[group.axis], row["calibrator"]) == chosen]
        found += [*_classes(group, line, own), *_rare(group, own), *_confidence(group, line)]
    return (*found, *_without_values(comparison), *unfinished(group.cells))


def unfinished(cells: Sequence[SavedCell]) -> list[str]:
    """One sentence for each way in which runs ended without a result."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if not cell.done:
            found.setdefault((cell.status, cell.reason), []).append(cell.label)
    return [
        f"{status}: {labels[0]}{f' and {len(labels) - 1} more' if labels[1:] else ''}"
        f"{f': {reason}' if reason else ''}"
        for (status, reason), labels in found.items()
    ]


def _classes(group: Group, line: Combination, rows: Sequence[Row]) -> list[str]:
    """The classes with the largest calibration errors, if some stand out."""
    errors, seed = _errors_of_rows(rows), ""
    if not errors:
        # Only long-tailed studies have such rows.
        test, seed = _of_file(group, line)
        errors = {} if test is None else class_errors(test)
    errors = {name: each for name, each in errors.items() if math.isfinite(each)}
    if len(errors) < 2:
        return []
    usual = mean(errors.values())
    ordered = sorted(errors, key=lambda name: -errors[name])[:NAMED]
    outliers = [name for name in ordered if errors[name] > FACTOR * usual]
    worst = outliers or ordered[:1]
    texts = [f"{class_name(name)} ({number(100 * errors[name], 1)} %)" for name in worst]
    few = "" if outliers else "; no class stands out"
    return [
        f"Largest calibration error of a class{seed}: {', '.join(texts)}. The mean over classes is "
        f"{number(100 * usual, 1)} %{few}."
    ]


def _errors_of_rows(rows: Sequence[Row]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        of_class = row["split"] == "test" and row["metric"].startswith(OF_CLASS)
        if of_class and row["value"] is not None:
            values.setdefault(row["metric"].removeprefix(OF_CLASS), []).append(row["value"])
    return {name: mean(each) for name, each in values.items()}


def _of_file(group: Group, line: Combination) -> tuple[Predictions | None, str]:
    """Test predictions of the first seed, calibrated, and which seed that is."""
    for cell in group.cells:
        if cell.done and cell.labels[group.axis] == line.name:
            return calibrated_test(cell, line.calibrator), f" (seed {cell.seed})"
    return None, ""


def _rare(group: Group, rows: Sequence[Row]) -> list[str]:
    """Accuracy and ECE of examples of frequent and of rare classes."""
    parts = {}
    for name in PARTS:
        lines = compare(rows, axis=group.axis, split=f"test: {name}").combinations
        if lines and lines[0].readings:
            parts[name] = lines[0].readings
    found = []
    for metric in ("accuracy", "ece"):
        texts = [
            f"{value_text(metric, of[metric].interval)} for {PARTS[name]} classes"
            for name, of in parts.items()
            if metric in of
        ]
        if len(texts) > 1:
            label = name_of(metric)
            found.append(f"{label[0].upper()}{label[1:]} by class frequency: {', '.join(texts)}.")
    return found


def _confidence(group: Group, line: Combination) -> list[str]:
    """Whether confidence is too high or too low, where its interval excludes zero."""
    reading = line.readings.get("overconfidence")
    if reading is not None:
        bias, seed = reading.interval, ""
    else:
        test, seed = _of_file(group, line)
        if test is None:
            return []
        bias = excess(test)
    if not (bias.low > 0 or bias.high < 0):
        return []
    kind = "over" if bias.value > 0 else "under"
    change = difference_text("overconfidence", bias)
    return [f"Mean confidence{seed} is {change} than accuracy: the model is {kind}-confident."]


def _without_values(comparison: Comparison) -> list[str]:
    """Lines whose calibrator did not converge, or without a finite value in some seed."""
    found = [f"{line.unconverged}." for line in comparison.combinations if line.remarks]
    for line in comparison.combinations:
        gone = [name for name in comparison.metrics if name not in line.readings]
        part = [name for name, each in line.readings.items() if each.missing]
        if gone and not line.readings:
            found.append(f"{line} has no result: the calibrator could not be fitted.")
        elif gone or part:
            names = ", ".join(name_of(name) for name in (*gone, *part))
            found.append(f"{line} has no finite {names} in some seed.")
    return found
