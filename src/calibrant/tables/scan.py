"""One scan of a table: Ibis expressions that sum what the metrics need, in the table's engine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.extras import need
from calibrant.metrics.bins import GRID_SPLIT, check_count
from calibrant.tables.columns import Columns
from calibrant.tables.table_sums import INVALID, MOMENTS, TableSums

if TYPE_CHECKING:
    import ibis

# Probabilities of an example may miss a sum of 1 by so much.
TOLERANCE = 1e-3
# A confidence may exceed 1 by rounding, as in `BinSums`.
ONE = 1 + 1e-6
# Rows of the result that are held in memory: slices times bins times classes.
MOST_ROWS = 20_000_000


def scan(
    table: "ibis.Table",
    columns: Columns,
    *,
    bins: int = 15,
    by: Mapping[str, "ibis.Value"] | None = None,
    grid: bool = True,
) -> dict[tuple[Any, ...], TableSums]:
    """Sums of each combination of the values of `by`, in one scan; without `by` the key is ().

    The engine computes softmax, the top class, bins and cells, and sums them; only the sums leave
    it. With `grid` the cells of `BinSums.on_grid` are summed, from which equal-mass bins are made.
    """
    keys = dict(by or {})
    summed = query(table, columns, bins=bins, by=keys, grid=grid)
    found = summed.limit(MOST_ROWS + 1).to_pyarrow()
    if len(found) > MOST_ROWS:
        raise ValueError(f"more than {MOST_ROWS:,} sums: use fewer slices, windows or bins")
    arrays = {name: found[name].to_numpy(zero_copy_only=False) for name in found.column_names}
    labels = [found[f"by_{at}"].to_pylist() for at in range(len(keys))]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for at, key in enumerate(zip(*labels, strict=True)):
        rows.setdefault(key, []).append(at)
    if not keys:
        rows = {(): list(range(len(found)))}
    return {
        key: TableSums.of_rows(
            {name: values[at] for name, values in arrays.items() if not name.startswith("by_")},
            classes=columns.classes,
            bins=bins,
            weighted=columns.weight is not None,
        )
        for key, at in rows.items()
    }


def query(
    table: "ibis.Table",
    columns: Columns,
    *,
    bins: int = 15,
    by: Mapping[str, "ibis.Value"] | None = None,
    grid: bool = True,
) -> "ibis.Table":
    """The expression that `scan` runs: one row for each slice, part, bin and cell."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    check_count(bins)
    keys = {f"by_{at}": value for at, value in enumerate((by or {}).values())}
    rows = _examples(ibis, table, columns, keys)
    if columns.classes > 1:
        rows = _long(ibis, rows, columns.classes, keys)
    value, valid = rows["value"], rows["invalid"] == 0
    last = ibis.literal(bins, "int64")
    bin_ = (value * float(bins)).ceil().cast("int64")
    for correction in _corrections(bins, exact=rows_are_float32(table, columns)):
        bin_ = correction(value, bin_)
    rows = rows.mutate(bin=ibis.ifelse(valid, ibis.least(bin_, last), -rows["invalid"]))
    if grid:
        # Signed: the distance to 0, or minus the distance to 1.
        rows = rows.mutate(signed=value - (value > 0.5).cast("float64"))
        rows = rows.mutate(split=rows["signed"] * GRID_SPLIT)
        cell = rows["split"] - (rows["split"] - rows["signed"])
        if columns.classes > 1:
            cell = ibis.ifelse(rows["part"] == 0, cell, 0.0)
        rows = rows.mutate(cell=ibis.ifelse(rows["bin"] >= 0, cell, 0.0))
    groups = [*keys, *(["part"] if columns.classes > 1 else []), "bin", *(["cell"] if grid else [])]
    return rows.group_by(groups).aggregate(**_sums(rows, columns))


def rows_are_float32(table: "ibis.Table", columns: Columns) -> bool:
    """Whether confidences are float32: then c * bins is exact, and no edge needs a comparison."""
    return columns.kind == "confidence" and table[columns.scores[0]].type().is_float32()


def _corrections(bins: int, *, exact: bool) -> list[Any]:
    """Steps after which the bin is that of the comparisons with the edges k / bins in float64.

    `ceil(c * bins)` is off by one at most, where the product is rounded.
    """
    if exact:
        return []
    count, edges = np.arange(1, bins + 1), np.arange(1, bins + 1) / bins
    steps = []
    if bool((edges * bins > count).any()):
        steps.append(
            lambda value, at: at - (value <= (at - 1).cast("float64") / float(bins)).cast("int64")
        )
    if bool((np.nextafter(edges, 2) * bins <= count).any()):
        steps.append(
            lambda value, at: at + (value > at.cast("float64") / float(bins)).cast("int64")
        )
    return steps


def _examples(
    ibis: Any, table: "ibis.Table", columns: Columns, keys: Mapping[str, "ibis.Value"]
) -> "ibis.Table":
    """One row for each example: confidence, correctness, weight, and what is invalid about it."""
    weight = {} if columns.weight is None else {"weight": table[columns.weight].cast("float64")}
    outcome = table[columns.outcome]
    if columns.classes == 1:
        value, hit = table[columns.scores[0]].cast("float64"), outcome.cast("float64")
        fine = (value >= 0) & (value <= ONE) & ((hit == 0) | (hit == 1))
        invalid = _first_of(
            ibis,
            fine,
            [
                ("null", table[columns.scores[0]].isnull() | outcome.isnull()),
                ("nan", value.isnan()),
                ("range", ~((value >= 0) & (value <= ONE))),
                ("label", ~((hit == 0) | (hit == 1))),
            ],
        )
        rows = table.select(**keys, value=value, hit=hit, **weight, invalid=invalid)
    else:
        rows = _classes(ibis, table, columns, {**keys, **weight})
    if columns.weight is not None:
        good = (rows["weight"] >= 0) & (rows["weight"] < float("inf"))
        bad = ibis.ifelse(ibis.coalesce(good, ibis.literal(False)), 0, INVALID.index("weight"))
        rows = rows.mutate(invalid=ibis.ifelse(rows["invalid"] > 0, rows["invalid"], bad))
    return rows


def _first_of(ibis: Any, fine: Any, problems: Sequence[tuple[str, Any]]) -> Any:
    """0 if all is fine, else the code of the first problem that holds."""
    branches = [(holds, INVALID.index(name)) for name, holds in problems]
    code = ibis.cases(*branches, else_=INVALID.index("null"))
    return ibis.ifelse(ibis.coalesce(fine, ibis.literal(False)), 0, code).cast("int64")


def _classes(
    ibis: Any, table: "ibis.Table", columns: Columns, more: Mapping[str, "ibis.Value"]
) -> "ibis.Table":
    """Examples with the probabilities of all classes: softmax and the top class in the engine."""
    k = columns.classes
    if columns.array:
        whole = table[columns.scores[0]]
        raw = [whole[at].cast("float64") for at in range(k)]
    elif len(columns.scores) == 1:
        positive = table[columns.scores[0]].cast("float64")
        raw = [1 - positive, positive]
    else:
        raw = [table[name].cast("float64") for name in columns.scores]
    outcome = table[columns.outcome]
    if columns.names is None:
        label = outcome.cast("int64")
    elif columns.names[0] == "" and k == 2:
        label = (outcome.cast("string") == columns.names[1]).cast("int64")
    else:
        text = outcome.cast("string")
        label = ibis.cases(*[(text == name, at) for at, name in enumerate(columns.names)], else_=-1)
    # Labels that are not integers would be rounded by the cast.
    whole_label = outcome == label if outcome.type().is_floating() else ibis.literal(True)
    size = table[columns.scores[0]].length() if columns.array else ibis.literal(k)
    rows = table.select(
        **more, **{f"s{at}": value for at, value in enumerate(raw)}, label=label,
        whole=whole_label, size=size,
    )  # fmt: skip
    scores = [rows[f"s{at}"] for at in range(k)]
    rows = rows.mutate(top=_highest(ibis, scores))
    top = rows["top"]
    at_label = ibis.cases(*[(rows["label"] == at, s) for at, s in enumerate(scores)])
    predicted = ibis.cases(*[(s == top, at) for at, s in enumerate(scores)])
    known = (rows["label"] >= 0) & (rows["label"] < k) & rows["whole"]
    if columns.kind == "logits":
        rows = rows.mutate(
            total=_total([(s - top).exp() for s in scores]), at_label=at_label, predicted=predicted
        )
        probs = [(s - rows["top"]).exp() / rows["total"] for s in scores]
        nll = rows["total"].ln() - (rows["at_label"] - rows["top"])
        zero = ibis.literal(0.0)
        total = _total(scores)
        ranges = [("range", ~(total.abs() < float("inf")))]
        fine = total.abs() < float("inf")
        value = 1 / rows["total"]
    else:
        rows = rows.mutate(at_label=at_label, predicted=predicted)
        probs = scores
        # The logarithm of 0 is an error in some engines: such labels are counted.
        own = rows["at_label"]
        nll = -ibis.ifelse(own > 0, own, 1.0).ln()
        zero = (own == 0).cast("float64")
        off = (_total(scores) - 1).abs()
        inside = (_lowest(ibis, scores) >= 0) & (top <= ONE)
        ranges = [("range", ~inside), ("sum", ~(off <= TOLERANCE))]
        fine = inside & (off <= TOLERANCE)
        value = top
    nan = _any([s.isnan() for s in scores])
    null = _any([s.isnull() for s in scores]) | rows["label"].isnull()
    shape = rows["size"] == k
    invalid = _first_of(
        ibis,
        fine & known & shape,
        [("size", ~shape), ("null", null), ("nan", nan), *ranges, ("label", ~known)],
    )
    brier = _total([p * p for p in probs]) + 1
    return rows.select(
        *more,
        value=value,
        hit=(rows["predicted"] == rows["label"]).cast("float64"),
        invalid=invalid,
        label=rows["label"],
        nll=nll,
        zero=zero,
        brier=brier - 2 * (rows["at_label"] if columns.kind == "probs" else (-nll).exp()),
        **{f"p{at}": p for at, p in enumerate(probs)},
    )


def _long(ibis: Any, rows: "ibis.Table", k: int, keys: Mapping[str, Any]) -> "ibis.Table":
    """One row for the top label (part 0) and one for each class (part 1 to k)."""
    from ibis.expr.operations import TableUnnest

    probs = [rows[f"p{at}"] for at in range(k)]
    kept = [*keys, "hit", "invalid", "label", "nll", "zero", "brier"]
    kept += ["weight"] if "weight" in rows.columns else []
    if ibis.get_backend(rows).has_operation(TableUnnest):
        values = ibis.array([rows["value"], *probs])
        long = rows.select(*kept, value=values).unnest("value", offset="part")
    else:
        long = rows.cross_join(ibis.memtable({"part": list(range(k + 1))}))
        parts = [(long["part"] == at + 1, long[f"p{at}"]) for at in range(k)]
        long = long.select(*kept, "part", value=ibis.cases(*parts, else_=long["value"]))
    first = long["part"] == 0
    return long.mutate(
        part=long["part"].cast("int64"),
        hit=ibis.ifelse(first, long["hit"], (long["label"] == long["part"] - 1).cast("float64")),
        **{name: ibis.ifelse(first, long[name], 0.0) for name in ("nll", "zero", "brier")},
    )


def _sums(rows: "ibis.Table", columns: Columns) -> dict[str, Any]:
    """The sums of `MOMENTS`; those that follow from others without weights are left out."""
    value, hit = rows["value"], rows["hit"]
    one = {"v": value, "h": hit, "vv": value * value, "vh": value * hit}
    sums: dict[str, Any] = {"rows": rows.count()}
    if columns.weight is None:
        sums |= {name: each.sum() for name, each in one.items()}
        squared = 1
        weight: Any = 1
    else:
        weight = rows["weight"]
        squared = weight * weight
        sums |= {"w": weight.sum()} | {name: (weight * each).sum() for name, each in one.items()}
        sums |= {"w2": squared.sum()}
        sums |= {f"{name}_w2": (squared * each).sum() for name, each in one.items()}
    if columns.classes > 1:
        nll, brier = rows["nll"], rows["brier"]
        sums |= {"nll": (weight * nll).sum(), "zero": (weight * rows["zero"]).sum()}
        sums |= {
            "nll_nll": (squared * nll * nll).sum(),
            "brier_brier": (squared * brier * brier).sum(),
        }
        if columns.weight is not None:
            sums |= {"nll_w2": (squared * nll).sum(), "brier_w2": (squared * brier).sum()}
        sums |= {"brier": (weight * brier).sum()}
    assert set(sums) <= {"rows", *MOMENTS}  # noqa: S101, a name of ours
    return sums


def _total(values: Sequence[Any]) -> Any:
    total = values[0]
    for each in values[1:]:
        total = total + each
    return total


def _any(values: Sequence[Any]) -> Any:
    found = values[0]
    for each in values[1:]:
        found = found | each
    return found


def _highest(ibis: Any, values: Sequence[Any]) -> Any:
    return ibis.greatest(*values)


def _lowest(ibis: Any, values: Sequence[Any]) -> Any:
    return ibis.least(*values)
