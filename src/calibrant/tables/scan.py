"""One scan of a table: Ibis expressions that sum what the metrics need, in the table's engine."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from calibrant.extras import need
from calibrant.metrics.bins import cells_per_bin
from calibrant.tables.columns import Columns
from calibrant.tables.examples import ONE, REASONS, Examples, examples, number
from calibrant.tables.table_sums import MOMENTS, STRIDE, TableSums

if TYPE_CHECKING:
    import ibis

# Sums that are held in memory: slices times bins times classes.
MOST_SUMS = 20_000_000
# More bins would mostly be empty.
MOST_BINS = 1000
# Cells of a key of 16 bits, and one more for confidences above 1 by rounding.
MOST_NARROW = 2**15 - 1
# These unnest several arrays of a row together; elsewhere rows are repeated for each part.
ZIPPED = ("duckdb", "postgres", "polars")

REASON = "calibrant_reason"
Key = tuple[Any, ...]
Sets = Sequence[tuple[str, ...]]


def scan(
    table: "ibis.Table",
    columns: Columns,
    *,
    bins: int = 15,
    keys: Mapping[str, "ibis.Value"] | None = None,
    sets: Sets | None = None,
    parts: Sequence[int] | None = None,
    fine: bool = True,
) -> dict[Key, TableSums]:
    """Sums of each combination of values of the keys, in one scan; without keys that of ().

    The engine computes softmax, the top class and the cells, and sums; only sums leave it.

    Args:
        table: the table.
        columns: what its columns mean.
        bins: number of bins.
        keys: name to expression; a value of it must not be null.
        sets: combinations of keys to group by, all together if not given. In the result, a key
            that is not in the combination is None.
        parts: parts of `TableSums` to sum; all if not given.
        fine: sum over fine cells of the bins, for equal-mass bins.
    """
    keys = dict(keys or {})
    sets = [tuple(keys)] if sets is None else sets
    given, at, arrays = fetch(
        table, columns, bins=bins, keys=keys, sets=sets, parts=parts, fine=fine
    )
    order = np.argsort(at, kind="stable")
    starts = np.searchsorted(at[order], np.arange(len(given) + 1))
    weighted = columns.weight is not None
    return {
        key: TableSums.of_rows(
            {name: values[order[start:end]] for name, values in arrays.items()},
            classes=columns.classes, bins=bins, fine=fine, weighted=weighted,
        )
        for key, (start, end) in zip(given, pairwise(starts), strict=True)
    }  # fmt: skip


def fetch(
    table: "ibis.Table", columns: Columns, *, bins: int, fine: bool, **options: Any
) -> tuple[list[Key], Int64[np.ndarray, " r"], dict[str, np.ndarray]]:
    """Run the query; gives the keys, the index of the key of each row, and the rows as arrays."""
    summed = query(table, columns, bins=bins, fine=fine, **options)
    by = [name for name in summed.columns if name.startswith("by_")]
    # Without keys there are as many sums as cells.
    found = (summed.limit(MOST_SUMS + 1) if by else summed).to_pyarrow()
    if len(found) > MOST_SUMS:
        raise ValueError(f"more than {MOST_SUMS:,} sums: use fewer slices, windows, groups or bins")
    arrays = {
        name: found[name].to_numpy(zero_copy_only=False).astype(np.float64)
        for name in ("cell", *MOMENTS, "known", "bad")
        if name in found.column_names
    }
    _check_valid(arrays, columns, bins=bins, fine=fine)
    keep = arrays.pop("keep")
    encoded = [found[name].combine_chunks().dictionary_encode("encode") for name in by]
    if not encoded:
        return [()], np.zeros(len(arrays["n"]), np.int64), arrays
    codes = np.stack([np.asarray(each.indices) for each in encoded], axis=1)[keep]
    chosen, at = np.unique(codes, axis=0, return_inverse=True)
    words = [each.dictionary.to_pylist() for each in encoded]
    keys = [tuple(w[c] for w, c in zip(words, row, strict=True)) for row in chosen]
    return keys, at.astype(np.int64), arrays


class InvalidRowsError(ValueError):
    """The table has rows that are no predictions; `diagnose` counts them by reason."""


def query(
    table: "ibis.Table",
    columns: Columns,
    *,
    bins: int = 15,
    keys: Mapping[str, "ibis.Value"] | None = None,
    sets: Sets = ((),),
    parts: Sequence[int] | None = None,
    fine: bool = True,
) -> "ibis.Table":
    """The expression that `scan` runs: one row for each combination of keys, part and cell."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    if not 1 <= bins <= MOST_BINS:
        raise ValueError(f"tables take 1 to {MOST_BINS:,} bins, got {bins:,}")
    backend = ibis.get_backend(table).name
    names = {name: f"by_{at}" for at, name in enumerate(keys or {})}
    by = {names[name]: value for name, value in (keys or {}).items()}
    each = examples(ibis, table, columns, by)
    kept = [*by, *(["weight"] if columns.weight is not None else [])]
    chosen = {part: each.parts[part] for part in (each.parts if parts is None else parts)}
    if len(chosen) == 1:
        part, (value, hit) = next(iter(chosen.items()))
        cell = _cell(ibis, value, part, columns, bins=bins, fine=fine)
        narrow = backend == "duckdb" and fine and not part and not by
        narrow &= bins * cells_per_bin(bins) < MOST_NARROW
        # A key of 16 bits is summed by DuckDB without hashing; nulls stand for what does not fit.
        rows = each.rows.select(
            *kept,
            value=value,
            hit=hit,
            cell=cell.try_cast("int16") if narrow else cell,
        )
        if columns.classes == 1 and not table[columns.outcome].type().is_boolean():
            rows = rows.mutate(bad=((rows["hit"] != 0) & (rows["hit"] != 1)).cast("int32"))
    else:
        if parts is None:
            bad = ~ibis.coalesce(each.fine, ibis.literal(False))
            chosen[columns.classes + 3] = (ibis.literal(0.0), number(ibis, bad))
        cells = {
            part: _cell(ibis, value, part, columns, bins=bins, fine=fine)
            for part, (value, _) in chosen.items()
        }
        rows = _long(ibis, each.rows, kept, chosen, cells, zipped=backend in ZIPPED)
    squares = len(chosen) > 1 or not fine
    return _aggregated(rows, list(by), [[names[n] for n in s] for s in sets], squares=squares)


def _cell(
    ibis: Any, value: "ibis.Value", part: int, columns: Columns, *, bins: int, fine: bool
) -> "ibis.Value":
    """`part * STRIDE + cell`; null, NaN or out of range for values that are."""
    ceil = _ceil(ibis, value)
    start = float(part * STRIDE)
    if part > columns.classes:
        return ibis.literal(start)
    cells = cells_per_bin(bins)
    cell = ceil(value * float(bins * cells))
    if not (fine and part in (0, 2 if columns.classes == 2 else 0)):
        # Half a cell below, so that no engine's rounding of the product changes the bin.
        cell = ceil((cell - 0.5) * (1 / cells))
    return cell + start if part else cell


def _ceil(ibis: Any, value: "ibis.Value") -> Any:
    """The engine's own function: that of Ibis casts to integers, which fails for NaN."""
    if ibis.get_backend(value).name == "polars":
        known = (value >= -1) & (value <= 2)
        return lambda x: ibis.ifelse(known, x, ibis.null("float64")).ceil().cast("float64")

    return ibis.udf.scalar.builtin(_engine_ceil, name="ceil")


def _engine_ceil(x: float) -> float:  # type: ignore[empty-body]
    """Ibis takes only the types from it."""


def _long(
    ibis: Any,
    rows: "ibis.Table",
    kept: Sequence[str],
    parts: Mapping[int, tuple["ibis.Value", "ibis.Value"]],
    cells: Mapping[int, "ibis.Value"],
    *,
    zipped: bool,
) -> "ibis.Table":
    """One row for each example and part."""
    value, hit = ([part[at] for part in parts.values()] for at in (0, 1))
    lists = {"value": value, "hit": hit, "cell": list(cells.values())}
    if zipped:
        return rows.select(
            *kept, **{name: ibis.array(each).unnest() for name, each in lists.items()}
        )
    wide = {f"{name}_{at}": v for name, each in lists.items() for at, v in enumerate(each)}
    joined = rows.select(*kept, **wide).mutate(part=ibis.range(0, len(parts)).unnest())
    return joined.select(
        *kept,
        **{
            name: ibis.cases(
                *[(joined["part"] == at, joined[f"{name}_{at}"]) for at in range(len(parts))]
            )
            for name in lists
        },
    )


def _aggregated(
    rows: "ibis.Table", by: Sequence[str], sets: Sequence[Sequence[str]], *, squares: bool
) -> "ibis.Table":
    """Sum by the keys of each set and by cell."""
    value, hit = rows["value"], rows["hit"]
    gap = value - hit
    terms = {"v": value, "h": hit, "s": gap * gap} | ({"q": value * value} if squares else {})
    summed: dict[str, Any] = dict(terms)
    if "weight" in rows.columns:
        weight = rows["weight"]
        summed = {"w": weight} | {name: weight * term for name, term in terms.items()}
        summed |= {"w2": weight * weight}
        summed |= {f"{name}2": weight * weight * term for name, term in terms.items()}
        good = (weight >= 0) & (weight < float("inf"))
        summed["bad"] = good.ifelse(0, 1).fill_null(1) + (
            rows["bad"] if "bad" in rows.columns else 0
        )
    elif "bad" in rows.columns:
        summed["bad"] = rows["bad"]
    if len(sets) == 1:
        return rows.group_by([*by, "cell"]).aggregate(
            n=rows.count(),
            known=rows["hit"].count(),
            **{name: term.sum() for name, term in summed.items()},
        )
    terms_table = rows.select(*by, "cell", **summed)
    columns = ", ".join(f'"{name}"' for name in [*by, "cell"])
    sums = ", ".join(f'SUM("{name}") AS "{name}"' for name in summed)
    groups = ", ".join("(" + ", ".join(f'"{n}"' for n in [*s, "cell"]) + ")" for s in sets)
    return terms_table.alias("calibrant_terms").sql(
        f'SELECT {columns}, COUNT(*) AS "n", {sums} FROM calibrant_terms '  # noqa: S608
        f"GROUP BY GROUPING SETS ({groups})",
        dialect="duckdb",
    )


def _check_valid(arrays: dict[str, np.ndarray], columns: Columns, *, bins: int, fine: bool) -> None:
    """Raise if the sums show that there are invalid rows; takes out what only serves this check.

    Values that are null, NaN or out of range fall into cells of their own.
    """
    cell, n = arrays["cell"], arrays["n"]
    check = cell >= (columns.classes + 3) * STRIDE
    bad = bool(np.isnan(cell).any())
    if "bad" in arrays:
        bad |= bool(arrays.pop("bad").sum())
    if "known" in arrays:
        bad |= bool((arrays.pop("known") < n).any())
    if columns.classes == 1:
        last = bins * (cells_per_bin(bins) if fine else 1)
        low, high = cell < 1, cell > last
        bad |= bool((cell < 0).any() or (arrays["v"][low] < 0).any())
        bad |= bool(
            (arrays["v"][high] > ONE * arrays.get("w", n)[high]).any() or (cell > last + 1).any()
        )
    else:
        bad |= bool(arrays["h"][check].sum())
    if bad:
        raise InvalidRowsError("the table has invalid rows")
    for name in arrays:
        arrays[name] = arrays[name][~check]
    arrays["keep"] = ~check


def diagnose(
    table: "ibis.Table", columns: Columns, *, time: "ibis.Value | None" = None
) -> dict[str, int]:
    """Count invalid rows by the first reason that holds, with a scan of its own."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    rows = _with_reason(ibis, table, columns, time).group_by(REASON)
    counted = rows.aggregate(n=lambda t: t.count()).to_pyarrow().to_pylist()
    found = {row[REASON]: int(row["n"]) for row in counted if row[REASON]}
    return {reason: found[reason] for reason in REASONS if reason in found}


def without_invalid(
    table: "ibis.Table", columns: Columns, *, time: "ibis.Value | None" = None
) -> "ibis.Table":
    """The table without invalid rows."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    rows = _with_reason(ibis, table, columns, time)
    return rows.filter(rows[REASON] == "").select(*table.columns)


def _with_reason(
    ibis: Any, table: "ibis.Table", columns: Columns, time: "ibis.Value | None"
) -> "ibis.Table":
    """The table with a column of reasons, empty for valid rows."""
    more = {name: table[name] for name in table.columns}
    renamed = {f"kept_{at}": value for at, value in enumerate(more.values())}
    if time is not None:
        renamed["time"] = time
    each: Examples = examples(ibis, table, columns, renamed)
    problems = dict(each.problems)
    fine = each.fine
    if time is not None:
        problems["time"] = each.rows["time"].isnull()
        fine = fine & each.rows["time"].notnull()
    reason = ibis.cases(*[(holds, name) for name, holds in problems.items()], else_="null")
    valid = ibis.coalesce(fine, ibis.literal(False))
    return each.rows.select(
        **{name: each.rows[f"kept_{at}"] for at, name in enumerate(more)},
        **{REASON: ibis.ifelse(valid, "", reason)},
    )
