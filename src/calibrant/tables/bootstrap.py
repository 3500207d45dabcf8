"""Poisson bootstrap inside the engine: each row is drawn so often as a hash of its key says."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from calibrant.extras import need
from calibrant.tables.columns import Columns
from calibrant.tables.scan import scan
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

# Arithmetic modulo this prime stays within 64 bits, and is the same in every engine.
PRIME = 2**31 - 1
# Replicates in one scan.
CHUNK = 50
WEIGHT, HASH = "calibrant_draws", "calibrant_hash"


def bootstrap(
    table: "ibis.Table",
    columns: Columns,
    key: str,
    *,
    replicates: int = 200,
    bins: int = 15,
    seed: int = 0,
) -> list[TableSums]:
    """Sums of resampled tables, in which each row counts as often as a Poisson variable says.

    The variable follows from two rounds of (a x + b) ** 5 modulo a prime, x being the key.

    Rows with the same key are drawn together: give the column of clusters as the key to resample
    clusters. Integer keys give the same draws in every engine; others are hashed by the engine.
    """
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    if key not in table.columns:
        raise ValueError(f"no column {key!r} in the table to resample by")
    rng = np.random.default_rng(seed)
    weighted = replace(columns, weight=WEIGHT)
    found = []
    for start in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - start)
        constants = rng.integers(1, PRIME, (4, size))
        names = tuple(f"calibrant_{name}" for name in ("replicate", "a", "b", "c", "d"))
        drawn = ibis.memtable(
            dict(zip(names, [list(range(size)), *constants.tolist()], strict=True)),
            schema=dict.fromkeys(names, "int64"),
        )
        rows = table.cross_join(drawn)
        rows = _computed(ibis, rows.mutate(**{HASH: residue(rows[key])}))
        for a, b in (names[1:3], names[3:]):
            mixed = (rows[HASH] * rows[a] + rows[b]) % PRIME
            rows = _computed(ibis, rows.mutate(**{HASH: mixed}))
            rows = _computed(ibis, rows.mutate(**{HASH: fifth_power(rows[HASH])}))
        own = 1.0 if columns.weight is None else rows[columns.weight].cast("float64")
        rows = rows.mutate(**{WEIGHT: poisson(ibis, rows[HASH]).cast("float64") * own})
        rows = _computed(ibis, rows.filter(rows[WEIGHT] > 0))
        sums = scan(rows, weighted, bins=bins, keys={"replicate": rows[names[0]]})
        found += [sums[at] for at in sorted(sums)]
    return found


def _computed(ibis: Any, rows: "ibis.Table") -> "ibis.Table":
    """The rows; PostgreSQL would else compute an expression again wherever it is used."""
    return rows.limit(2**62) if ibis.get_backend(rows).name == "postgres" else rows


def poisson(ibis: Any, residue: "ibis.Value") -> "ibis.Value":
    """A Poisson variable of mean 1, given a uniform residue modulo the prime.

    The largest value is 10, because larger ones have a probability of 1e-8.
    """
    # Thresholds of the distribution function, as residues.
    cuts = np.ceil(stats.poisson(1).cdf(np.arange(10)) * PRIME).astype(int).tolist()
    return ibis.cases(*[(residue < cut, count) for count, cut in enumerate(cuts)], else_=10)


def fifth_power(x: "ibis.Value") -> "ibis.Value":
    """The fifth power modulo the prime: a permutation of the residues."""
    square = (x * x) % PRIME
    return ((square * square) % PRIME * x) % PRIME


def residue(key: "ibis.Value") -> "ibis.Value":
    """A residue modulo the prime for each key."""
    whole = key.cast("int64") if key.type().is_integer() else key.hash()
    high = whole // PRIME
    # Both parts, because keys may exceed the prime; the second sum undoes negative remainders.
    return ((whole % PRIME + PRIME) % PRIME + (high % PRIME + PRIME) % PRIME * 48271) % PRIME
