"""Expressions for each example of a table: confidence, correctness, scores, and what is invalid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Any

from calibrant.tables.columns import Columns

if TYPE_CHECKING:
    import ibis

# Probabilities of an example may miss a sum of 1 by so much, as in `Predictions`.
TOLERANCE = 1e-3
# A confidence may exceed 1 by rounding, as in `BinSums`.
ONE = 1 + 1e-6
# PostgreSQL refuses results that underflow, also squares: smaller numbers count as 0 there.
LEAST = 1e-150
LEAST_EXPONENT = -340.0
# Why a row is invalid.
REASONS = {
    "null": "a null",
    "nan": "NaN",
    "range": "a score out of range",
    "size": "another number of classes",
    "sum": "probabilities that do not sum to 1",
    "label": "a label outside the classes",
    "correct": "a correctness that is neither 0 nor 1",
    "weight": "a negative, infinite or missing weight",
    "time": "no time",
}


def invalid_text(invalid: Mapping[str, int]) -> str:
    """How many rows have which problem."""
    return ", ".join(f"{count:,} with {REASONS[reason]}" for reason, count in invalid.items())


@dataclass(frozen=True)
class Examples:
    """A table with one row for each example, and expressions of its columns.

    Attributes:
        rows: the table.
        parts: value and hit of each part of `TableSums`.
        problems: reason to the condition under which a row is invalid, the first that holds.
        fine: a condition that holds for valid rows only; null or false for all others.
    """

    rows: "ibis.Table"
    parts: dict[int, tuple["ibis.Value", "ibis.Value"]]
    problems: dict[str, "ibis.Value"]
    fine: "ibis.Value"


def examples(
    ibis: Any, table: "ibis.Table", columns: Columns, more: Mapping[str, "ibis.Value"]
) -> Examples:
    """Expressions for the examples of a table; `more` are columns to keep."""
    if columns.weight is not None:
        more = {**more, "weight": table[columns.weight].cast("float64")}
    found = _confidences(ibis, table, columns, more) if columns.classes == 1 else _classes(
        ibis, table, columns, more
    )  # fmt: skip
    if columns.weight is None:
        return found
    weight = found.rows["weight"]
    good = (weight >= 0) & (weight < float("inf"))
    problems = {**found.problems, "weight": ~ibis.coalesce(good, ibis.literal(False))}
    return Examples(found.rows, found.parts, problems, found.fine & good)


def _confidences(
    ibis: Any, table: "ibis.Table", columns: Columns, more: Mapping[str, "ibis.Value"]
) -> Examples:
    score, outcome = table[columns.scores[0]], table[columns.outcome]
    # Integers are summed faster.
    hit = outcome.cast("int32" if outcome.type().is_boolean() else "float64")
    rows = table.select(**more, value=_probability(ibis, score.cast("float64")), hit=hit)
    value, hit = rows["value"], rows["hit"]
    inside, binary = (value >= 0) & (value <= ONE), (hit == 0) | (hit == 1)
    # NaN first: for Spark it is null, too.
    problems = {
        "nan": value.isnan(),
        "null": value.isnull() | hit.isnull(),
        "range": ~inside,
        "correct": ~binary,
    }
    return Examples(rows, {0: (value, hit)}, problems, inside & binary)


def _classes(
    ibis: Any, table: "ibis.Table", columns: Columns, more: Mapping[str, "ibis.Value"]
) -> Examples:
    """Softmax, the top class and the proper scores in the engine."""
    k = columns.classes
    rows = table.select(
        **more,
        **{f"s{at}": value for at, value in enumerate(_scores(ibis, table, columns))},
        label=_label(ibis, table[columns.outcome], columns),
        size=table[columns.scores[0]].length() if columns.array else ibis.literal(k),
    )
    scores = [rows[f"s{at}"] for at in range(k)]
    rows = rows.mutate(
        top=ibis.greatest(*scores),
        own=ibis.cases(*[(rows["label"] == at, s) for at, s in enumerate(scores)]),
    )
    top, own, label = rows["top"], rows["own"], rows["label"]
    hit = ibis.cases(*[(s == top, label == at) for at, s in enumerate(scores)])
    if columns.kind == "logits":
        exponents = {f"e{at}": _exp(ibis, s - top) for at, s in enumerate(scores)}
        rows = rows.mutate(**exponents, hit=hit)
        rows = rows.mutate(total=reduce(add, [rows[f"e{at}"] for at in range(k)]))
        total = rows["total"]
        rows = rows.mutate(
            nll=total.ln() - (own - top),
            value=1 / total,
            **{f"p{at}": rows[f"e{at}"] / total for at in range(k)},
        )
        # The sum of the logits is NaN or null if one of them is; a logit of -inf masks its class.
        inside = (total >= 1) & (total < float("inf")) & (reduce(add, scores) < float("inf"))
        brier = [rows[f"p{at}"] * rows[f"p{at}"] for at in range(k)]
        at_label = _exp(ibis, -rows["nll"])
        ranges = {"range": ~inside}
    else:
        total, lowest = reduce(add, scores), ibis.least(*scores)
        # The logarithm of 0 is an error in some engines.
        nll = ibis.ifelse(own > 0, -ibis.ifelse(own > 0, own, 1.0).ln(), float("inf"))
        rows = rows.mutate(
            nll=nll, hit=hit, value=top, **{f"p{at}": s for at, s in enumerate(scores)}
        )
        inside, sums = (lowest >= 0) & (top <= ONE), (total - 1).abs() <= TOLERANCE
        brier = [s * s for s in scores]
        at_label = own
        ranges = {"range": ~inside, "sum": ~sums}
        inside = inside & sums
    rows = rows.mutate(brier=reduce(add, brier) + 1 - 2 * at_label)
    known = (rows["label"] >= 0) & (rows["label"] < k)
    problems = {
        "size": ~(rows["size"] == k),
        "nan": reduce(or_, [rows[f"s{at}"].isnan() for at in range(k)]),
        "null": reduce(or_, [rows[f"s{at}"].isnull() for at in range(k)]) | rows["label"].isnull(),
        **ranges,
        "label": ~known,
    }
    zero = ibis.literal(0.0)
    parts = {0: (rows["value"], number(ibis, rows["hit"]))}
    parts |= {at + 1: (rows[f"p{at}"], number(ibis, rows["label"] == at)) for at in range(k)}
    parts |= {k + 1: (rows["nll"], zero), k + 2: (rows["brier"], zero)}
    return Examples(rows, parts, problems, inside & known & (rows["size"] == k))


def _scores(ibis: Any, table: "ibis.Table", columns: Columns) -> Sequence["ibis.Value"]:
    first = table[columns.scores[0]]
    if columns.array:
        # Some engines refuse to look behind the end.
        scores = [
            ibis.ifelse(first.length() > at, first[at], ibis.null("float64")).cast("float64")
            for at in range(columns.classes)
        ]
    elif len(columns.scores) == 1:
        positive = first.cast("float64")
        scores = [1 - positive, positive]
    else:
        scores = [table[name].cast("float64") for name in columns.scores]
    return scores if columns.kind == "logits" else [_probability(ibis, each) for each in scores]


def _probability(ibis: Any, value: "ibis.Value") -> "ibis.Value":
    """The value, or 0 if PostgreSQL would refuse its square."""
    if ibis.get_backend(value).name != "postgres":
        return value
    return ibis.ifelse((value > -LEAST) & (value < LEAST), value * 0, value)


def number(ibis: Any, value: "ibis.Value") -> "ibis.Value":
    """A boolean or a number as float64; PostgreSQL casts booleans to small integers only."""
    if value.type().is_boolean() and ibis.get_backend(value).name == "postgres":
        value = value.cast("int32")
    return value.cast("float64")


def _label(ibis: Any, outcome: "ibis.Value", columns: Columns) -> "ibis.Value":
    """Index of the class; -1 for any other label."""
    if columns.names is not None:
        text = outcome.cast("string")
        if columns.names[0] == "":
            return (text == columns.names[1]).cast("int32").cast("int64")
        return ibis.cases(*[(text == name, at) for at, name in enumerate(columns.names)], else_=-1)
    if outcome.type().is_boolean():
        return outcome.cast("int32").cast("int64")
    if not outcome.type().is_floating():
        return outcome.cast("int64")
    # A cast would round labels that are not integers, and fail on NaN.
    return ibis.cases(*[(outcome == at, at) for at in range(columns.classes)], else_=-1)


def _exp(ibis: Any, value: "ibis.Value") -> "ibis.Value":
    return ibis.greatest(value, LEAST_EXPONENT).exp()
