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
WEIGHT = "calibrant_draws"


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
        names = ("replicate", "a", "b", "c", "d")
        drawn = ibis.memtable(
            dict(zip(names, [list(range(size)), *constants.tolist()], strict=True)),
            schema=dict.fromkeys(names, "int64"),
        )
        rows = table.cross_join(drawn)
        count = poisson(ibis, residue(rows[key]), *(rows[name] for name in names[1:]))
        own = 1.0 if columns.weight is None else rows[columns.weight].cast("float64")
        rows = rows.mutate(**{WEIGHT: count.cast("float64") * own})
        rows = rows.filter(rows[WEIGHT] > 0)
        sums = scan(rows, weighted, bins=bins, keys={"replicate": rows["replicate"]})
        found += [sums[at] for at in sorted(sums)]
    return found


def poisson(ibis: Any, key: "ibis.Value", *constants: "ibis.Value") -> "ibis.Value":
    """A Poisson variable of mean 1 for each key: two rounds of (a x + b) ** 5 modulo a prime.

    The fifth power is a permutation of the residues. The largest value is 10, whose probability is
    too small to matter.
    """
    a, b, c, d = constants
    x = fifth_power((key * a + b) % PRIME)
    x = fifth_power((x * c + d) % PRIME)
    # Thresholds of the distribution function, as residues.
    cuts = np.ceil(stats.poisson(1).cdf(np.arange(10)) * PRIME).astype(int).tolist()
    return ibis.cases(*[(x < cut, count) for count, cut in enumerate(cuts)], else_=10)


def fifth_power(x: "ibis.Value") -> "ibis.Value":
    """The fifth power modulo the prime."""
    square = (x * x) % PRIME
    return ((square * square) % PRIME * x) % PRIME


def residue(key: "ibis.Value") -> "ibis.Value":
    """A residue modulo the prime for each key."""
    whole = key.cast("int64") if key.type().is_integer() else key.hash()
    high = whole // PRIME
    # Both parts, because keys may exceed the prime; the second sum undoes negative remainders.
    return ((whole % PRIME + PRIME) % PRIME + (high % PRIME + PRIME) % PRIME * 48271) % PRIME
