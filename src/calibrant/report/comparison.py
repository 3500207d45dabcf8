"""Combinations of methods and calibrators compared: which values are significantly worse."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.metrics import METRICS, Interval
from calibrant.metrics.resampling.seeds import over_runs
from calibrant.report.differences import SAME, Reading, better, differences, is_worse
from calibrant.report.display_names import calibrator_name
from calibrant.report.formatting import digits, ends_text, name_of, number, value_with_interval
from calibrant.table_values import Cell, Column, Mark, Table

NONE = "none"
# Behind a calibrator whose fit did not converge.
DAGGER = "\N{DAGGER}"
# Metrics of a single class have this before its name; they are no columns.
OF_CLASS = "classwise_ece: "


@dataclass(frozen=True)
class Combination:
    """A method, or an optimizer, with a calibrator; a metric without a value has no reading.

    `remarks` say of some seeds why the fit of the calibrator did not converge.
    """

    name: str
    calibrator: str
    readings: Mapping[str, Reading]
    remarks: Mapping[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.calibrator == NONE:
            return f"{self.name} without calibrator"
        return f"{self.name} with {calibrator_name(self.calibrator)}"

    @property
    def unconverged(self) -> str:
        """Why the calibrator must not be recommended; empty if every fit converged."""
        if not self.remarks:
            return ""
        seeds = ", ".join(map(str, sorted(self.remarks)))
        reasons = "; ".join(dict.fromkeys(self.remarks.values()))
        return f"{self} did not converge (seed {seeds}): {reasons}"


@dataclass(frozen=True)
class Comparison:
    """All combinations of one dataset, model and optimizer, in the order of the study.

    `axis` is what they differ in beside the calibrator: "method" or "optimizer".
    """

    axis: str
    metrics: tuple[str, ...]
    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...]

    @property
    def note(self) -> str:
        """How the numbers and the marks were computed."""
        many = len(self.seeds)
        values = "one seed, with its 95 % interval over test examples"
        if many > 1:
            values = (
                f"mean of {many} seeds, with the 95 % interval of a single training over test "
                "examples and seeds"
            )
        found = [r.difference for line in self.combinations for r in line.readings.values()]
        hows = {difference.how for difference in found if difference}
        bound = ""
        if any(line.remarks for line in self.combinations):
            bound = f" {DAGGER} The calibrator did not converge; it is not recommended."
        if not hows:
            return f"Test split: {values}.{bound}"
        by = {"seeds": "paired by seed", "examples": "from the intervals over test examples"}
        how = " or ".join(words for key, words in by.items() if key in hows)
        return (
            f"Test split: {values}. A value is significantly worse if the 95 % interval of its "
            f"difference to the best, {how}, excludes zero; this is not corrected for the number "
            "of rows."
            + (" With two seeds, only large differences can be significant." if many == 2 else "")
            + bound
        )

    def as_table(self, chosen: Combination | None = None) -> Table:
        """The comparison as a table, in the order of the study."""
        columns = [Column(self.axis), Column("calibrator")]
        columns += [Column(name_of(m), True, better(m) == "higher") for m in self.metrics]
        rows = tuple(
            (
                Cell(line.name, value=line.name),
                _calibrator(line),
                *(_cell(line.readings.get(metric)) for metric in self.metrics),
            )
            for line in self.combinations
        )
        caption = f"Every {self.axis} with every calibrator"
        place = next((at for at, line in enumerate(self.combinations) if line is chosen), None)
        return Table(tuple(columns), rows, caption, place)


def _calibrator(line: Combination) -> Cell:
    """The calibrator; with a dagger if its fit did not converge."""
    dagger = f" {DAGGER}" if line.remarks else ""
    name = calibrator_name(line.calibrator)
    return Cell(name + dagger, value=line.calibrator, tip=line.unconverged)


def _cell(reading: Reading | None) -> Cell:
    """A value with its interval; the tip has the values of the seeds."""
    if reading is None:
        return Cell("-", mark="unknown")
    interval = reading.interval
    tips = [f"{name_of(reading.metric)} {value_with_interval(interval)}"]
    tips += [f"seed {seed}: {each.value:.6g}" for seed, each in sorted(reading.runs.items())]
    if reading.difference is not None and reading.mark != "best":
        gap = reading.difference
        tips.append(f"difference to the best: {gap.value:+.4g} [{gap.low:+.3g}, {gap.high:+.3g}]")
    text = number(interval.value, digits(interval.low, interval.high))
    return Cell(text, ends_text(interval), reading.mark, repr(interval.value), "\n".join(tips))


def compare(
    rows: Iterable[Mapping[str, Any]], *, axis: str = "method", split: str = "test"
) -> Comparison:
    """Compare rows of one dataset, model and optimizer on a split, by `axis` and calibrator.

    A combination is worse if the 95 % interval of its difference to the best excludes zero.
    Those whose calibrator did not converge have no mark and are never the best.
    Differences are paired by seed, as the same seed means the same data. The marks are not
    corrected for the number of lines: over the two or three seeds of most studies nothing would
    ever be worse. `CombinationDifference.adjusted` is the p-value after that correction.
    """
    found: dict[str, dict[str, dict[str, dict[int, Interval | None]]]] = {}
    remarks: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        if row["split"] != split or row["metric"].startswith(OF_CLASS):
            continue
        line = found.setdefault(row[axis], {}).setdefault(row["calibrator"], {})
        runs = line.setdefault(row["metric"], {})
        if row["seed"] in runs:
            raise ValueError(
                f"combinations differ in {axis} and calibrator: rows must be of one dataset and "
                f"model, but {row[axis]}, {row['calibrator']}, seed {row['seed']} is there twice"
            )
        runs[row["seed"]] = _measured(row)
        if row.get("remark"):
            remarks.setdefault((row[axis], row["calibrator"]), {})[row["seed"]] = row["remark"]
    named = [
        (name, calibrator, each)
        for name, own in found.items()
        for calibrator, each in sorted(own.items(), key=lambda item: item[0] != NONE)
    ]
    known = list(dict.fromkeys(metric for _, _, each in named for metric in each))
    columns = sorted(known, key=lambda name: [*METRICS, name].index(name))
    readings: list[dict[str, Reading]] = [{} for _ in named]
    for metric in columns:
        marked = _marked(
            [_reading(metric, each.get(metric, {})) for _, _, each in named],
            [key[:2] not in remarks for key in named],
        )
        for own, reading in zip(readings, marked, strict=True):
            if reading is not None:
                own[metric] = reading
    lines = (
        Combination(*key[:2], own, remarks.get(key[:2], {}))
        for key, own in zip(named, readings, strict=True)
    )
    seeds = {seed for _, _, each in named for runs in each.values() for seed in runs}
    return Comparison(axis, tuple(columns), tuple(lines), tuple(sorted(seeds)))


def _measured(row: Mapping[str, Any]) -> Interval | None:
    """The numbers of a row; None if it has no finite value."""
    value, low, high = (
        math.nan if row[name] is None else float(row[name]) for name in ("value", "low", "high")
    )
    return Interval(value, low, high) if math.isfinite(value) else None


def _reading(metric: str, runs: Mapping[int, Interval | None]) -> Reading | None:
    held = {seed: each for seed, each in runs.items() if each is not None}
    mean = over_runs(metric, [(each.value, each.low, each.high) for each in held.values()])
    if mean is None:
        return None
    if mean.low == mean.high and all(math.isnan(each.low + each.high) for each in held.values()):
        # Neither examples nor seeds say anything: that is no interval, not one of no width.
        mean = Interval(mean.value, math.nan, math.nan)
    return Reading(metric, mean, held, len(runs) - len(held))


def _marked(readings: list[Reading | None], converged: list[bool]) -> list[Reading | None]:
    """Say of each reading of a metric how it compares with the best of those that converged."""
    fair = [
        each is not None and not each.missing and good
        for each, good in zip(readings, converged, strict=True)
    ]
    whole = [each for each, known in zip(readings, fair, strict=True) if each is not None and known]
    best = min(whole, key=lambda each: each.cost, default=None)
    found: list[Reading | None] = []
    for each, known, gap in zip(readings, fair, differences(readings, best), strict=True):
        if each is None or best is None:
            found.append(each)
            continue
        mark: Mark = "unknown"
        if known and math.isclose(each.cost, best.cost, rel_tol=SAME):
            mark = "best"
        elif known and gap is not None:
            mark = "worse" if is_worse(each.metric, gap) else "equal"
        found.append(replace(each, mark=mark, difference=gap))
    return found
