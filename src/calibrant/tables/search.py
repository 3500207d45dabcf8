"""Search for the worst slice over many columns, with a valid p-value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.advice import InputError
from calibrant.table_values import p_text
from calibrant.tables.bootstrap import PRIME, fifth_power, residue
from calibrant.tables.clusters import Clusters
from calibrant.tables.columns import Columns
from calibrant.tables.measures import calibration_test, measured_slices
from calibrant.tables.scan import scan
from calibrant.tables.slices import LEAST, Slice, measured_clusters, slice_keys, slice_of
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

HALF = "calibrant_half"
Where = tuple[tuple[str, str], ...]
# Most conditions of a slice, and slices that each step extends (beam width).
DEPTH, BEAM = 3, 5


@dataclass(frozen=True)
class FoundSlice:
    """The worst slice of a search.

    Attributes:
        searched: the slice in the half of the rows that was searched; its p-value is too small,
            because it is the best of many.
        confirmed: the same slice in the other half, which the search did not see.
        tried: number of slices that the search compared.
    """

    searched: Slice
    confirmed: Slice
    tried: int

    @property
    def name(self) -> str:
        """Such as `region=north, version=2`."""
        return self.confirmed.name

    @property
    def p_value(self) -> float:
        """P-value in the half that was not searched: it needs no correction."""
        return self.confirmed.p_value

    @property
    def facts(self) -> str:
        """What was found, and how sure that is."""
        return (
            f"Worst of {self.tried:,} slices in half of the rows: {self.name}. In the other half, "
            f"which was not searched, its debiased ECE is {self.confirmed.debiased}, p-value "
            f"{p_text(self.p_value)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        halves = {"searched": self.searched, "confirmed": self.confirmed}
        return {"where": dict(self.searched.where), "tried": self.tried} | {
            name: {
                "rows": each.sums.rows,
                "ece": asdict(each.ece),
                "debiased_ece": asdict(each.debiased),
                "mean_gap": asdict(each.gap),
                "p_value": each.p_value,
            }
            for name, each in halves.items()
        }


def find_slices(
    table: "ibis.Table",
    columns: Columns,
    by: Sequence[str],
    *,
    key: str | None = None,
    bins: int = 15,
    least: int = LEAST,
    depth: int = DEPTH,
    level: float = 0.95,
    seed: int = 0,
) -> FoundSlice | None:
    """Search greedily for the slice with the largest debiased error; None if none has enough rows.

    The rows are split into halves by a hash of `key`. On the first half, the search starts with
    every value of every column and adds conditions to the five slices with the largest lower bound
    of the debiased ECE, up to `depth` conditions, one scan for each. It prefers fewer conditions
    unless the interval of the error with one more lies above that before. The slice it ends with is
    tested on the second half, so its p-value is valid however many slices were tried.

    Args:
        table: the table.
        columns: what its columns mean.
        by: columns to search.
        key: column of row keys; rows with the same key fall into the same half.
        bins: number of bins.
        least: rows of the smallest slice, in each half.
        depth: most conditions of a slice.
        level: confidence level of the intervals.
        seed: seed of the halves.
    """
    key = key or columns.group
    if key is None:
        raise InputError(
            "a search needs a column of row keys to split the rows by", "give key", "give --key"
        )
    keys = slice_keys(table, by)
    a, b = np.random.default_rng(seed).integers(1, PRIME, 2).tolist()
    half = (fifth_power((residue(table[key]) * a + b) % PRIME) % 2).cast("string")
    named = {f"calibrant_by_{at}": value for at, value in enumerate(keys.values())}
    rows = table.mutate(**named, **{HALF: half})
    names = dict(zip(keys, named, strict=True))
    beam: list[dict[str, str]] = [{}]
    tried = 0
    best: Slice | None = None
    for _ in range(min(depth, len(keys))):
        found: dict[Where, dict[str, TableSums]] = {}
        for where in beam:
            found |= _extended(rows, columns, where, names, bins=bins)
        enough = {
            where: halves
            for where, halves in found.items()
            if all(half in halves and halves[half].rows >= least for half in ("0", "1"))
        }
        own = [halves["0"] for halves in enough.values()]
        measures = measured_slices(own, level=level, seed=seed)
        scored = [
            slice_of(dict(where), sums, each, calibration_test(sums).p_value, math.nan)
            for where, sums, each in zip(enough, own, measures, strict=True)
        ]
        tried += len(scored)
        scored.sort(key=lambda each: -each.debiased.low)
        if not scored:
            break
        # One condition more must raise the error beyond noise.
        if best is None or scored[0].debiased.low > best.debiased.high:
            best = scored[0]
        beam = [dict(each.where) for each in scored[:BEAM]]
    if best is None:
        return None
    return _confirmed(rows, columns, best, names, tried=tried, bins=bins, level=level, seed=seed)


def _extended(
    rows: "ibis.Table",
    columns: Columns,
    where: Mapping[str, str],
    names: Mapping[str, str],
    *,
    bins: int,
) -> dict[Where, dict[str, TableSums]]:
    """Sums of both halves of each slice with one more condition, in one scan."""
    chosen = _filtered(rows, where, names)
    free = [name for name in names if name not in where]
    keys = {name: chosen[names[name]] for name in free} | {HALF: chosen[HALF]}
    sums = scan(
        chosen, columns, bins=bins, keys=keys, sets=[(name, HALF) for name in free],
        parts=[columns.focus], fine=False,
    )  # fmt: skip
    found: dict[Where, dict[str, TableSums]] = {}
    for key, each in sums.items():
        added = {name: value for name, value in zip(free, key, strict=False) if value is not None}
        slice_key = tuple(sorted({**where, **added}.items()))
        found.setdefault(slice_key, {})[key[-1]] = each
    return found


def _filtered(
    rows: "ibis.Table", where: Mapping[str, str], names: Mapping[str, str]
) -> "ibis.Table":
    if not where:
        return rows
    return rows.filter(reduce(and_, [rows[names[name]] == value for name, value in where.items()]))


def _confirmed(
    rows: "ibis.Table",
    columns: Columns,
    best: Slice,
    names: Mapping[str, str],
    *,
    tried: int,
    bins: int,
    level: float,
    seed: int,
) -> FoundSlice:
    """Measure the slice on the half that was not searched."""
    chosen = _filtered(rows, best.where, names)
    chosen = chosen.filter(chosen[HALF] == "1")
    sums = scan(chosen, columns, bins=bins, parts=[columns.focus], fine=False)[()]
    clusters = None
    if columns.group is not None:
        clusters = Clusters.scan(chosen, columns, bins=bins, scores=False)[()]
    p_value = calibration_test(sums, clusters).p_value
    measures = (
        measured_slices([sums], level=level, seed=seed)[0]
        if clusters is None
        else measured_clusters(sums, clusters, level=level, seed=seed)
    )
    return FoundSlice(best, slice_of(best.where, sums, measures, p_value, p_value), tried)
