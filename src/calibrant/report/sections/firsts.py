"""Test predictions of the first seed of each method, in the few numbers that panels show."""

import warnings
from dataclasses import dataclass
from functools import lru_cache

from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import BinSums
from calibrant.predictions import Predictions
from calibrant.report.saved import Group
from calibrant.report.sections.panel import first_cells

# Bins of a histogram of confidence.
FINE = 20


@dataclass(frozen=True)
class First:
    """One training.

    Attributes:
        seed: of the training.
        before: sums of the top label as trained, 15 bins.
        after: the same after temperature scaling fitted to val; None where it cannot be fitted.
        temperature: that of the scaling.
        fine: sums over more bins, as trained.
    """

    seed: int
    before: BinSums
    after: BinSums | None
    temperature: float | None
    fine: BinSums


@lru_cache(maxsize=1)
def firsts(group: Group) -> dict[str, First]:
    """The first seed of each method that is done; read once for all panels of a group."""
    found = {}
    for name, cell in first_cells(group).items():
        test = cell.test
        if test is None:
            continue
        after, temperature = _calibrated(cell.val, test)
        before, fine = BinSums.of(test), BinSums.of(test, FINE)
        found[name] = First(cell.seed, before, after, temperature, fine)
    return found


def _calibrated(val: Predictions | None, test: Predictions) -> tuple[BinSums | None, float | None]:
    if val is None:
        return None, None
    with warnings.catch_warnings():
        # Small validation sets make the fit warn; the table of the page says so already.
        warnings.simplefilter("ignore", UserWarning)
        try:
            fitted = TemperatureScaling.fit(val)
        except ValueError:
            return None, None
        return BinSums.of(test.map(fitted)), fitted.temperature
