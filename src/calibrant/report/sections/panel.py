"""What the panels of a page share: which runs they show, means over the seeds, diagrams."""

import math
from dataclasses import dataclass
from functools import lru_cache

from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import BinSums
from calibrant.report.charts.dots import Dot
from calibrant.report.charts.reliability import FINE
from calibrant.report.measured import fit_calibrator
from calibrant.report.rendering import Panel as Panel
from calibrant.report.saved import Group, SavedCell

# Calibrators before and after which panels show things, in words.
STAGES = {"none": "as trained", "temperature": "after temperature scaling"}
# Metric and calibrator of charts, and their titles; temperature scaling does not change accuracy.
ACCURACY = {("accuracy", "none"): "Accuracy"}
ECE = {("ece", calibrator): f"ECE, {words}" for calibrator, words in STAGES.items()}
# Name, calibrator, split, metric.
Key = tuple[str, str, str, str]


def done_cells(group: Group) -> dict[str, list[SavedCell]]:
    """Finished runs by name, in the order of the study."""
    found: dict[str, list[SavedCell]] = {}
    for cell in group.cells:
        if cell.done:
            found.setdefault(cell.labels[group.axis], []).append(cell)
    return found


def first_cells(group: Group) -> dict[str, SavedCell]:
    """The first seed of each."""
    return {name: cells[0] for name, cells in done_cells(group).items()}


def seed_means(group: Group) -> dict[Key, Dot]:
    """Mean, lowest and highest value over the seeds, of rows that have a value."""
    held: dict[Key, list[float]] = {}
    for row in group.rows:
        if row["value"] is not None:
            key = (row[group.axis], row["calibrator"], row["split"], row["metric"])
            held.setdefault(key, []).append(row["value"])
    return {key: Dot(math.fsum(v) / len(v), min(v), max(v)) for key, v in held.items()}


@dataclass(frozen=True)
class First:
    """One run: bin sums of the top label as trained, in 15 and in `FINE` bins, and after scaling.

    `after` and `scaling` are None where temperature scaling cannot be fitted.
    """

    seed: int
    before: BinSums
    fine: BinSums
    after: BinSums | None
    scaling: TemperatureScaling | None

    @property
    def converged(self) -> bool:
        """Whether there is a best temperature, rather than a bound."""
        origin = None if self.scaling is None else self.scaling.origin
        return origin is None or origin.converged


@lru_cache(maxsize=1)
def first_results(group: Group) -> dict[str, First]:
    """Test predictions of the first finished seed of each; read once for all panels of a group."""
    found = {}
    for name, cell in first_cells(group).items():
        test = cell.test
        if test is not None:
            scaling = fit_calibrator(cell, "temperature")
            after = None if scaling is None else BinSums.of(test.map(scaling))
            known = scaling if isinstance(scaling, TemperatureScaling) else None
            found[name] = First(cell.seed, BinSums.of(test), BinSums.of(test, FINE), after, known)
    return found
