"""Calibration of slices: which parts of the table are off, ranked by evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, pairwise
from operator import add
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.extras import need
from calibrant.metrics import Interval
from calibrant.metrics.resampling.comparisons import holm
from calibrant.tables.columns import Columns
from calibrant.tables.measures import calibration_test, measured
from calibrant.tables.scan import scan
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

Correction = Literal["holm", "bh"]
# Smaller slices are counted, not tested: an interval of their ECE would span most of its range.
LEAST = 100
# Numeric columns with more distinct values are cut into so many quantile bins.
DISTINCT, QUANTILES = 20, 5
MISSING = "(missing)"


@dataclass(frozen=True)
class Slice:
    """One slice: rows with these values of some columns.

    Attributes:
        where: column to value, as text.
        sums: the sums of its rows.
        ece: ECE with its interval; of two classes that of P(positive).
        debiased: ECE minus its sampling bias.
        excess: mean confidence minus accuracy; of two classes mean P(positive) minus base rate.
        p_value: of the chi-squared test that the slice is calibrated.
        corrected: the p-value corrected for the number of slices tested.
    """

    where: Mapping[str, str]
    sums: TableSums
    ece: Interval
    debiased: Interval
    excess: Interval
    p_value: float
    corrected: float

    @property
    def name(self) -> str:
        """Such as `region=north, version=2`."""
        return ", ".join(f"{column}={value}" for column, value in self.where.items())


@dataclass(frozen=True)
class Slices:
    """Slices ranked by evidence: the smallest corrected p-value first, then the largest error."""

    slices: tuple[Slice, ...]
    columns: tuple[str, ...]
    depth: int
    least: int
    too_small: int
    correction: Correction


def audit_slices(
    table: "ibis.Table",
    columns: Columns,
    by: Sequence[str],
    *,
    bins: int = 15,
    depth: int = 1,
    least: int = LEAST,
    level: float = 0.95,
    correction: Correction = "holm",
    seed: int = 0,
) -> Slices:
    """Measure each value of each column of `by`, and their combinations up to `depth` columns.

    One scan groups by all columns together; smaller combinations are sums of its results. Columns
    of many distinct numbers are cut at quantiles, which takes one more query.
    """
    keys = {name: slice_key(table, name) for name in by}
    cells = scan(table, columns, bins=bins, by=keys, grid=False)
    groups: dict[tuple[tuple[str, str], ...], list[TableSums]] = {}
    for values, sums in cells.items():
        named = [(column, text_of(value)) for column, value in zip(by, values, strict=True)]
        for size in range(1, min(depth, len(by)) + 1):
            for where in combinations(named, size):
                groups.setdefault(where, []).append(sums)
    totals = {where: reduce(add, parts) for where, parts in groups.items()}
    kept = {where: sums for where, sums in totals.items() if sums.rows >= least}
    raw = [calibration_test(sums).p_value for sums in kept.values()]
    corrected = corrected_p_values(raw, correction)
    found = [
        measured_slice(dict(where), sums, p_value, adjusted, level=level, seed=seed)
        for (where, sums), p_value, adjusted in zip(kept.items(), raw, corrected, strict=True)
    ]
    # NaN, with weights, ranks by the error alone.
    found.sort(key=lambda each: (np.nan_to_num(each.corrected, nan=1.0), -each.debiased.value))
    return Slices(tuple(found), tuple(by), depth, least, len(totals) - len(kept), correction)


def measured_slice(
    where: Mapping[str, str],
    sums: TableSums,
    p_value: float,
    corrected: float,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Slice:
    """A slice with its metrics."""
    names = (
        ("binary_ece", "debiased_binary_ece", "calibration_in_the_large")
        if sums.classes == 2
        else ("ece", "debiased_ece", "overconfidence")
    )
    found = measured(sums, level=level, draws=200, seed=seed, names=names)
    ece, debiased, excess = (found[name] for name in names)
    return Slice(where, sums, ece, debiased, excess, p_value, corrected)


def corrected_p_values(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Correct for the number of tests: Holm (any false alarm), or Benjamini-Hochberg (their share).

    >>> corrected_p_values([0.01, 0.04, 0.03], "bh")
    [0.03, 0.04, 0.04]
    """
    if correction == "holm" or not p_values:
        return holm(list(p_values))
    values = np.asarray(p_values)
    order = values.argsort(kind="stable")[::-1]
    ranks = np.arange(len(values), 0, -1)
    found = np.empty_like(values)
    found[order] = np.minimum(np.minimum.accumulate(values[order] * len(values) / ranks), 1)
    return [float(value) for value in found]


def slice_key(table: "ibis.Table", name: str) -> "ibis.Value":
    """The value of a column that slices are made of; many numbers become quantile bins."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    if name not in table.columns:
        raise ValueError(f"no column {name!r} in the table to slice by")
    column = table[name]
    if not column.type().is_numeric():
        return column.cast("string")
    counted = table.aggregate(
        distinct=column.nunique(),
        **{f"q{at}": column.quantile(at / QUANTILES) for at in range(1, QUANTILES)},
    ).to_pyarrow()
    if counted["distinct"][0].as_py() <= DISTINCT:
        return column.cast("string")
    cuts = sorted({counted[f"q{at}"][0].as_py() for at in range(1, QUANTILES)})
    labels = [f"<= {cuts[0]:g}", *(f"{a:g} to {b:g}" for a, b in pairwise(cuts))]
    branches = [(column <= cut, label) for cut, label in zip(cuts, labels, strict=True)]
    return ibis.cases((column.isnull(), MISSING), *branches, else_=f"> {cuts[-1]:g}")


def text_of(value: object) -> str:
    """A value of a slice as text."""
    return MISSING if value is None else str(value)
