"""Calibration of slices: which parts of the table are off, ranked by evidence."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.extras import need
from calibrant.metrics import Interval
from calibrant.metrics.resampling.comparisons import holm
from calibrant.setting_errors import did_you_mean
from calibrant.tables.clusters import Clusters
from calibrant.tables.columns import Columns
from calibrant.tables.measures import (
    calibration_test,
    measured,
    measured_slices,
    summary_names,
)
from calibrant.tables.scan import Key, scan
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

Correction = Literal["holm", "bh"]
CORRECTIONS: dict[Correction, str] = {"holm": "Holm", "bh": "Benjamini-Hochberg"}
# Smaller slices are counted, not tested: an interval of their ECE would span most of its range.
LEAST = 100
# Numeric columns with more distinct values are cut into so many quantile bins.
DISTINCT, QUANTILES = 20, 5
# More would fill the page, and leave no p-value after the correction.
MOST_SLICES = 100_000
MISSING = "(missing)"
# Name of the first and the last quantile bin.
RANGE = r"(<=|>) [-+.0-9e]+$"
# Gap and power for which the page states the size of a slice.
USEFUL_GAP, Z_LEVEL, Z_POWER = 0.05, 1.96, 0.84


@dataclass(frozen=True)
class Slice:
    """One slice: rows with these values of some columns.

    Attributes:
        where: column to value, as text.
        sums: the sums of its rows.
        ece: ECE with its interval; of two classes that of P(positive).
        debiased: ECE minus its sampling bias.
        gap: mean confidence minus accuracy; of two classes mean P(positive) minus base rate.
        p_value: of the test that the slice is calibrated.
        corrected: the p-value corrected for the number of slices tested.
    """

    where: Mapping[str, str]
    sums: TableSums
    ece: Interval
    debiased: Interval
    gap: Interval
    p_value: float
    corrected: float

    @property
    def name(self) -> str:
        """Such as `region=north, version=2`."""
        return ", ".join(
            f"{column} {value}" if re.match(RANGE, value) else f"{column}={value}"
            for column, value in self.where.items()
        )


@dataclass(frozen=True)
class Slices:
    """Slices ranked by evidence: the smallest corrected p-value first, then the largest error.

    Attributes:
        slices: the slices that were tested.
        columns: the columns they were made of.
        depth: how many columns were combined at most.
        least: rows of the smallest slice that is tested.
        too_small: number of smaller slices.
        correction: of the p-values.
        useful: rows that a slice needs so that a mean gap of 5 points is found with 80 % power.
    """

    slices: tuple[Slice, ...]
    columns: tuple[str, ...]
    depth: int
    least: int
    too_small: int
    correction: Correction
    useful: int

    @property
    def facts(self) -> str:
        """How the slices were chosen and tested."""
        tested, small = (
            f"{number:,} slice{'s' * (number != 1)}"
            for number in (len(self.slices), self.too_small)
        )
        return (
            f"Ranked by evidence; p-values corrected for {tested} "
            f"({CORRECTIONS[self.correction]}). {small} under {self.least:,} rows "
            f"{'was' if self.too_small == 1 else 'were'} not tested. To find a mean gap of 5 "
            f"points with 80 % power, a slice needs about {self.useful:,} rows."
        )

    @property
    def miscalibrated(self) -> tuple[Slice, ...]:
        """Those with a corrected p-value below 5 %."""
        return tuple(each for each in self.slices if each.corrected < 0.05)


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
    draws: int = 200,
    seed: int = 0,
) -> Slices:
    """Measure each value of each column of `by`, and their combinations up to `depth` columns.

    All slices take one scan, by grouping sets where the engine has them. Columns of many distinct
    numbers are cut at quantiles, which takes one query before.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"no correction {correction!r}; use one of {', '.join(CORRECTIONS)}")
    for name, value in (("depth", depth), ("the smallest slice", least)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    keys = slice_keys(table, by)
    depth = min(depth, len(keys))
    sets = [one for size in range(1, depth + 1) for one in combinations(keys, size)]
    options: dict[str, Any] = {"bins": bins, "keys": keys, "sets": sets}
    totals = scan(table, columns, parts=[columns.focus], fine=False, **options)
    kept = {key: sums for key, sums in totals.items() if sums.rows >= least}
    if len(kept) > MOST_SLICES:
        raise ValueError(f"{len(kept):,} slices, at most {MOST_SLICES:,}: use fewer columns")
    clusters: dict[Key, Clusters] = {}
    if columns.group is not None:
        clusters = Clusters.scan(table, columns, scores=False, **options)
    raw = [calibration_test(sums, clusters.get(key)).p_value for key, sums in kept.items()]
    corrected = corrected_p_values(raw, correction)
    measures = (
        [
            measured_clusters(sums, clusters.get(key), level=level, draws=draws, seed=seed)
            for key, sums in kept.items()
        ]
        if clusters or not draws
        else measured_slices(list(kept.values()), level=level, draws=draws, seed=seed)
    )
    found = [
        slice_of(where_of(keys, key), kept[key], each, p_value, adjusted)
        for key, each, p_value, adjusted in zip(kept, measures, raw, corrected, strict=True)
    ]
    # NaN, of too few clusters, ranks by the error alone.
    found.sort(key=lambda each: (np.nan_to_num(each.corrected, nan=1.0), -each.debiased.value))
    useful = useful_size(list(totals.values()))
    return Slices(
        tuple(found), tuple(keys), depth, least, len(totals) - len(kept), correction, useful
    )


def where_of(keys: Iterable[str], key: Key) -> dict[str, str]:
    """Conditions of a slice, given its key."""
    return {name: value for name, value in zip(keys, key, strict=False) if value is not None}


def slice_of(
    where: Mapping[str, str],
    sums: TableSums,
    measures: Mapping[str, Interval],
    p_value: float,
    corrected: float,
) -> Slice:
    """A slice with its metrics."""
    ece, debiased, gap = (measures[name] for name in summary_names(sums.classes).values())
    return Slice(where, sums, ece, debiased, gap, p_value, corrected)


def measured_clusters(
    sums: TableSums, clusters: Clusters | None, *, level: float, seed: int, draws: int = 200
) -> dict[str, Interval]:
    """The metrics of a slice, whose rows may come in clusters."""
    names = list(summary_names(sums.classes).values())
    return measured(sums, level=level, draws=draws, seed=seed, names=names, clusters=clusters)


def useful_size(slices: Sequence[TableSums]) -> int:
    """Rows with which a mean gap of 5 points is found at 5 % with a power of 80 %."""
    found = [each.moments(each.focus) for each in slices]
    weight = sum(float(each["w"].sum()) for each in found)
    variance = sum((each["v"] - each["q"]).sum() for each in found) / max(weight, 1e-300)
    return max(1, math.ceil(float(variance) * ((Z_LEVEL + Z_POWER) / USEFUL_GAP) ** 2))


def corrected_p_values(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Correct for the number of tests: Holm (any false alarm), or Benjamini-Hochberg (their share).

    A test that could not be made, NaN, stays NaN and does not count.

    >>> corrected_p_values([0.01, 0.04, 0.03], "bh")
    [0.03, 0.04, 0.04]
    """
    values = np.asarray(p_values, dtype=np.float64)
    made = ~np.isnan(values)
    tested, found = values[made], values.copy()
    if correction == "holm" or not len(tested):
        found[made] = holm(tested.tolist())
    else:
        order = tested.argsort(kind="stable")[::-1]
        ranks = np.arange(len(tested), 0, -1)
        adjusted = np.empty_like(tested)
        steps = np.minimum.accumulate(tested[order] * len(tested) / ranks)
        adjusted[order] = np.minimum(steps, 1)
        found[made] = adjusted
    return [float(value) for value in found]


def slice_keys(table: "ibis.Table", by: Sequence[str]) -> dict[str, "ibis.Value"]:
    """For each column an expression of the value that slices are made of, as text.

    Columns of many numbers become quantile bins, for all columns with one query.
    """
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    by = list(dict.fromkeys(by))
    for name in by:
        if name not in table.columns:
            raise ValueError(
                f"no column {name!r} in the table to slice by; {did_you_mean(name, table.columns)}"
            )
    numbers = [name for name in by if _is_number(table[name])]
    cuts = {}
    if numbers:
        wanted: dict[str, Any] = {}
        for at, name in enumerate(numbers):
            column = _known(ibis, table[name].cast("float64"))
            wanted |= {f"n{at}": column.nunique()}
            wanted |= {f"q{at}_{q}": column.quantile(q / QUANTILES) for q in range(1, QUANTILES)}
        row = table.aggregate(**wanted).to_pyarrow().to_pylist()[0]
        for at, name in enumerate(numbers):
            if row[f"n{at}"] > DISTINCT:
                ends = {row[f"q{at}_{q}"] for q in range(1, QUANTILES)}
                cuts[name] = sorted(float(each) for each in ends if each is not None)
    return {
        name: _quantile_bin(ibis, table[name], cuts[name])
        if name in cuts
        else _text(ibis, table[name])
        for name in by
    }


def _is_number(column: "ibis.Value") -> bool:
    kind = column.type()
    return bool(kind.is_numeric() and not kind.is_boolean())


def _known(ibis: Any, column: "ibis.Value") -> "ibis.Value":
    """Null in place of NaN."""
    if not column.type().is_floating():
        return column
    return ibis.ifelse(column.isnan(), ibis.null(column.type()), column)


def _text(ibis: Any, column: "ibis.Value") -> "ibis.Value":
    return _known(ibis, column).cast("string").fill_null(MISSING)


def _quantile_bin(ibis: Any, column: "ibis.Value", cuts: Sequence[float]) -> "ibis.Value":
    # Enough digits to tell the cuts apart.
    digits = next(d for d in range(4, 18) if len({f"{cut:.{d}g}" for cut in cuts}) == len(cuts))
    texts = [f"{cut:.{digits}g}" for cut in cuts]
    labels = [f"<= {texts[0]}", *(f"{low} to {high}" for low, high in pairwise(texts))]
    branches = [(column <= cut, label) for cut, label in zip(cuts, labels, strict=True)]
    known = ibis.cases(*branches, else_=f"> {texts[-1]}")
    return ibis.ifelse(_known(ibis, column).isnull(), MISSING, known)
