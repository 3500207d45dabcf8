"""Test predictions of the first seed of each method, as the few numbers that panels show."""

from dataclasses import dataclass
from functools import lru_cache

from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import BinSums
from calibrant.report.measured import fit_calibrator
from calibrant.report.saved import Group
from calibrant.report.sections.panel import first_cells

# Bins of a histogram of confidence.
FINE = 20


@dataclass(frozen=True)
class First:
    """One run: bin sums of the top label as trained, in 15 and in `FINE` bins, and after scaling.

    `after` and `temperature` are None where temperature scaling cannot be fitted.
    """

    seed: int
    before: BinSums
    after: BinSums | None
    temperature: float | None
    fine: BinSums


@lru_cache(maxsize=1)
def first_results(group: Group) -> dict[str, First]:
    """The first finished seed of each method; read once for all panels of a group."""
    found = {}
    for name, cell in first_cells(group).items():
        test = cell.test
        if test is not None:
            scaling = fit_calibrator(cell, "temperature")
            after = None if scaling is None else BinSums.of(test.map(scaling))
            value = scaling.temperature if isinstance(scaling, TemperatureScaling) else None
            sums = BinSums.of(test), after, value, BinSums.of(test, FINE)
            found[name] = First(cell.seed, *sums)
    return found
