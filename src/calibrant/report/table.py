"""What is compared: one line for each method and calibrator, and which is how good."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant.metrics import METRICS, Interval
from calibrant.metrics.resampling.seeds import over_runs
from calibrant.report.gaps import SAME, Mark, Reading, gaps, is_worse

NONE = "none"
# Metrics of a single class have this before its name; they are no columns.
OF_CLASS = "classwise_ece: "


@dataclass(frozen=True)
class Line:
    """A method, or an optimizer, with a calibrator; a metric without a value has no reading."""

    name: str
    calibrator: str
    readings: Mapping[str, Reading]

    def __str__(self) -> str:
        if self.calibrator == NONE:
            return f"{self.name} without a calibrator"
        return f"{self.name} with {self.calibrator}"


@dataclass(frozen=True)
class Table:
    """What `compared` found.

    Attributes:
        axis: what the lines differ in, "method" or "optimizer", beside the calibrator.
        metrics: the columns.
        lines: in the order of the study.
        seeds: of all lines together.
    """

    axis: str
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    seeds: tuple[int, ...]

    @property
    def note(self) -> str:
        """What the numbers and the marks mean, in two sentences."""
        many = len(self.seeds)
        gaps = [r.gap for line in self.lines for r in line.readings.values() if r.gap]
        hows = {gap.how for gap in gaps}
        shown = "mean over seeds, 95 % interval of one training over examples and seeds"
        if many < 2:
            shown = "one seed, 95 % interval over examples"
        if not hows:
            return f"Test split, {shown}."
        by = {
            "seeds": "the paired t-interval of its difference to the best over seeds",
            "examples": "the intervals over examples of the one seed that both have",
        }
        used = " or, with one seed in common, ".join(by[how] for how in by if how in hows)
        return (
            f"Test split, {shown}. Significantly worse: by {used}, at the level of 5 % for each "
            "line alone, not corrected for the number of lines."
            + (" Two seeds can hardly show a difference." if many == 2 else "")
        )


def compared(
    rows: Iterable[Mapping[str, Any]], *, axis: str = "method", split: str = "test"
) -> Table:
    """Compare what rows of one dataset, model and optimizer hold.

    A line is marked as worse if the 95 % interval of its difference to the best lies beyond zero.
    Differences are paired by seed, as the same seed means the same data. The marks are not
    corrected for the number of lines: over the two or three seeds of most studies nothing would
    ever be worse. `Gap.adjusted` has what is left after that correction.

    Args:
        rows: with the fields of a row of a study, of any split.
        axis: the field that the lines differ in beside the calibrator.
        split: the rows to take.
    """
    found: dict[str, dict[str, dict[str, dict[int, Interval | None]]]] = {}
    for row in rows:
        if row["split"] != split or row["metric"].startswith(OF_CLASS):
            continue
        line = found.setdefault(row[axis], {}).setdefault(row["calibrator"], {})
        runs = line.setdefault(row["metric"], {})
        if row["seed"] in runs:
            raise ValueError(
                f"lines differ in {axis} and calibrator: rows must be of one dataset and model, "
                f"but {row[axis]}, {row['calibrator']}, seed {row['seed']} is there twice"
            )
        runs[row["seed"]] = _measured(row)
    named = [
        (name, calibrator, each)
        for name, own in found.items()
        for calibrator, each in sorted(own.items(), key=lambda item: item[0] != NONE)
    ]
    known = list(dict.fromkeys(metric for _, _, each in named for metric in each))
    columns = sorted(known, key=lambda name: [*METRICS, name].index(name))
    readings: list[dict[str, Reading]] = [{} for _ in named]
    for metric in columns:
        marked = _marked([_reading(metric, each.get(metric, {})) for _, _, each in named])
        for own, reading in zip(readings, marked, strict=True):
            if reading is not None:
                own[metric] = reading
    lines = (Line(*key[:2], own) for key, own in zip(named, readings, strict=True))
    seeds = {seed for _, _, each in named for runs in each.values() for seed in runs}
    return Table(axis, tuple(columns), tuple(lines), tuple(sorted(seeds)))


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


def _marked(readings: list[Reading | None]) -> list[Reading | None]:
    """Say of each reading of a metric how it compares with the best."""
    whole = [each for each in readings if each is not None and not each.missing]
    best = min(whole, key=lambda each: each.cost, default=None)
    found: list[Reading | None] = []
    for each, gap in zip(readings, gaps(readings, best), strict=True):
        if each is None or best is None:
            found.append(each)
            continue
        mark: Mark = "unknown"
        if not each.missing and math.isclose(each.cost, best.cost, rel_tol=SAME):
            mark = "best"
        elif gap is not None and not each.missing:
            mark = "worse" if is_worse(each.metric, gap) else "equal"
        found.append(replace(each, mark=mark, gap=gap))
    return found
