"""What the columns of a table of predictions mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from calibrant.advice import InputError
from calibrant.array_names import LABELS, STEMS, class_names_of
from calibrant.files.checks import listed
from calibrant.setting_errors import did_you_mean

if TYPE_CHECKING:
    import ibis

Kind = Literal["confidence", "probs", "logits"]
# Usual names of the score of the positive class alone.
SCORES = ("p", "prob", "probability", "proba")
# More columns would make queries of megabytes.
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Columns:
    """Names of the columns, each as the table has it.

    Attributes:
        kind: what the scores are.
        scores: one column of confidences; one of probabilities of the positive class; one for each
            class; or a single column of arrays.
        outcome: correctness (0 or 1) for confidences, else the label.
        classes: number of classes; 1 if only the confidence is known.
        array: whether `scores` is one column of arrays.
        names: the labels in the order of the classes, the first empty if it is any other than the
            second; integers from 0 if None.
        weight: column of example weights.
        group: column of clusters, such as users, whose rows are not independent.
    """

    kind: Kind
    scores: tuple[str, ...]
    outcome: str
    classes: int
    array: bool = False
    names: tuple[str, ...] | None = None
    weight: str | None = None
    group: str | None = None

    @property
    def focus(self) -> int:
        """The part of `TableSums` that a verdict is about."""
        return 2 if self.classes == 2 else 0


def find_columns(
    table: "ibis.Table",
    *,
    confidence: str | None = None,
    correct: str | None = None,
    probs: str | Sequence[str] | None = None,
    logits: str | Sequence[str] | None = None,
    labels: str | None = None,
    names: Sequence[str] | None = None,
    positive: str | None = None,
    weight: str | None = None,
    group: str | None = None,
) -> Columns:
    """Find the columns of predictions in a table, by the names given or by usual ones.

    Usual names: `confidence` and `correct`; `label` with p0, p1, ... or logit0, logit1, ...; a
    column of arrays named probs or logits; a single probability named prob or p; `weights` and
    `groups`.
    """
    schema = {name: table[name].type() for name in table.columns}
    for name in (weight, group):
        _check(schema, name)
    weight = weight or ("weights" if "weights" in schema else None)
    group = group or ("groups" if "groups" in schema else None)
    kind, scores = _scores(schema, confidence, probs, logits)
    if kind == "confidence":
        outcome = _check(schema, correct or "correct")
        return Columns(kind, scores, outcome, 1, weight=weight, group=group)
    outcome = _check(schema, labels or next((n for n in LABELS if n in schema), LABELS[0]))
    array = schema[scores[0]].is_array()
    classes = len(scores)
    if array:
        sizes = table.select(size=table[scores[0]].length()).limit(1).to_pyarrow()["size"]
        classes = int((sizes.to_pylist() or [0])[0] or 0)
        if classes < 2:
            raise ValueError(f"the first array of column {scores[0]} has {classes} scores")
    if classes == 1 and kind == "logits":
        raise ValueError(f"one column of logits, {scores[0]}: give one for each class")
    classes = max(classes, 2)
    if classes > MOST_CLASSES:
        raise ValueError(f"tables hold at most {MOST_CLASSES:,} classes, got {classes:,}")
    text = schema[outcome].is_string()
    named = tuple(names) if names is not None else class_names_of(scores) if text else None
    if positive is not None and len(scores) == 1 and named is None:
        named = ("", positive)
    if text and named is None:
        raise InputError(
            f"labels of column {outcome} are text",
            "name the classes in order with names, or the positive one with positive",
            "name the classes in order with --names, or the positive one with --positive",
        )
    if positive is not None and named is not None and named[-1] != positive:
        raise ValueError(f"the positive class must be the last of two, got {positive!r}")
    if named is not None and len(named) != classes:
        raise ValueError(f"{len(named)} class names were given for {classes} classes")
    return Columns(kind, scores, outcome, classes, array, named, weight, group)


def _scores(
    schema: Mapping[str, object],
    confidence: str | None,
    probs: str | Sequence[str] | None,
    logits: str | Sequence[str] | None,
) -> tuple[Kind, tuple[str, ...]]:
    every: dict[Kind, str | Sequence[str] | None]
    every = {"confidence": confidence, "probs": probs, "logits": logits}
    given = {kind: value for kind, value in every.items() if value}
    if len(given) > 1:
        raise ValueError(f"several kinds of scores are named: {', '.join(given)}; give one")
    for kind, value in given.items():
        patterns = [each for text in _listed(value) for each in text.split(",")]
        found = [
            name
            for pattern in patterns
            for name in (
                [pattern]
                if pattern in schema
                else [n for n in schema if fnmatchcase(n, pattern)] or [_check(schema, pattern)]
            )
        ]
        return kind, tuple(dict.fromkeys(found))
    if "confidence" in schema and "correct" in schema:
        return "confidence", ("confidence",)
    for stem, kind in STEMS.items():
        for join in ("", "_"):
            numbered: list[str] = []
            while f"{stem}{join}{len(numbered)}" in schema:
                numbered.append(f"{stem}{join}{len(numbered)}")
            if len(numbered) > 1:
                return kind, tuple(numbered)
        if stem in schema and schema[stem].is_array():  # type: ignore[attr-defined]
            return kind, (stem,)
    single = next((name for name in SCORES if name in schema), None)
    if single is not None:
        return "probs", (single,)
    raise InputError(
        f"no scores among the columns {listed(list(schema), 20)}",
        "name them with confidence, probs or logits",
        "name them with --confidence, --probs or --logits",
    )


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _check(schema: Mapping[str, object], name: str | None) -> str:
    """Refuse a column that the table does not have."""
    if name is not None and name not in schema:
        raise ValueError(f"no column {name!r} in the table; {did_you_mean(name, schema)}")
    return name or ""
