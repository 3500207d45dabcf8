"""Several labels in files: arrays (n, k), or a column for each label."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant import files
from calibrant.advice import InputError
from calibrant.array_names import (
    OPTIONAL,
    Names,
    Requested,
    class_names_of,
    holds,
    select_columns,
)
from calibrant.checks import Kind
from calibrant.files.checks import listed
from calibrant.prediction_files import PredictionArrays

NAMES = "label_names"


def read_multi_label(
    path: str | Path,
    requested: Requested,
    *,
    label_names: Sequence[str] | None = None,
    max_expansion: float = 100.0,
) -> PredictionArrays:
    """Read scores and labels, (n, k) each, of a file or of all files that match a pattern.

    Columns of scores and labels are matched by their names without the common start: p_cat with
    y_cat. Class names of the result are those of the labels.
    """
    parts = files.expand(path)
    first, held = parts[0], files.columns(parts[0])
    kind = requested.kind or _kind(first, held)
    scores = _select(first, held, getattr(requested, kind) or _default(first, kind))
    of_labels = requested.labels or _default(first, "labels")
    labels: tuple[str, ...] = ()
    if requested.need_labels or holds(first, of_labels):
        labels = _select(first, held, of_labels, scores)
    optional = tuple(n for n in OPTIONAL if n in held and n not in requested.ignore)
    limits: dict[str, Any] = {"max_expansion": max_expansion}
    _check_others(first, held, {*scores, *labels}, requested)
    arrays = files.read_parts(parts, [*scores, *optional], text=("groups",), **limits)
    known = files.read_optional(parts, labels, **limits) if labels else {}
    own, others = class_names_of(scores), class_names_of(labels)
    order: Any = slice(None)
    if own and others:
        if set(own) != set(others):
            raise ValueError(
                f"{path}: columns of scores and of labels must have the same names, got "
                f"{listed(own)} and {listed(others)}"
            )
        order = [others.index(name) for name in own]
    found: Any = label_names or own or others
    if found is None and NAMES in held and not files.is_table(first):
        found = files.read(first, [NAMES], text=(NAMES,))[NAMES].ravel()
    return PredictionArrays(
        path,
        tuple(parts),
        Names(kind, scores, labels[0] if len(labels) == 1 else "labels", optional, own),
        _matrix(path, arrays, scores),
        _matrix(path, known, labels)[:, order] if labels else None,
        {name: arrays[name] for name in optional},
        None if found is None else tuple(map(str, found)),
        label_columns=labels,
    )


def named_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Arrays (n, k) as files keep them: with the names of the labels, unless these are 0, 1, ..."""
    if tuple(names) == tuple(map(str, range(len(names)))):
        return dict(arrays)
    if path.suffix.lower() == ".npz":
        return dict(arrays) | {NAMES: np.array(names)}
    return {
        f"{array}_{name}": values[:, at].copy()
        for array, values in arrays.items()
        for at, name in enumerate(names)
    }


def _kind(path: Path, held: Sequence[str]) -> Kind:
    """Kind of the scores that a file has under their usual names."""
    kinds: tuple[Kind, ...] = ("logits", "probs")
    found = [kind for kind in kinds if any(n == kind or n.startswith(f"{kind}_") for n in held)]
    if len(found) == 1:
        return found[0]
    which = "both logits and probs" if found else f"{listed(held)}, none of logits or probs"
    raise InputError(
        f"{path} has {which}",
        "name the scores of the labels, such as probs='p_*', and labels='y_*'",
        "name the scores of the labels, such as --probs 'p_*', and --labels 'y_*'",
    )


def _default(path: Path, name: str) -> str:
    return name if name in files.names(path) else f"{name}_*"


def _select(
    path: Path, held: Sequence[str], given: str | Sequence[str], apart: Sequence[str] = ()
) -> tuple[str, ...]:
    """The columns of the labels; an array (n, k) is one name, or in tables its columns."""
    chosen = select_columns(path, held, given, apart=(*apart, *OPTIONAL))
    return tuple(column for name in chosen for column in files.array_columns(path, held, name))


def _matrix(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> NDArray[Any]:
    """The columns side by side, (n, k)."""
    columns = [arrays[name] for name in names]
    if len(columns) == 1 and columns[0].ndim == 2 and columns[0].shape[1] > 1:
        return columns[0]
    if len(columns) == 1:
        raise InputError(
            f"{path}: {names[0]!r} has shape {columns[0].shape}, several labels need (n, k)",
            "read a single label with Predictions.load",
            "leave out --multi-label for a single label",
        )
    if any(column.ndim != 1 for column in columns):
        raise ValueError(f"{path}: several arrays are named, so each must be one column")
    return np.stack(columns, axis=1)


def _check_others(path: Path, held: Sequence[str], used: set[str], requested: Requested) -> None:
    """Refuse unknown arrays of an archive, which may be one with a damaged name."""
    ignored = (*requested.ignore, *OPTIONAL, NAMES)
    others = [
        name
        for name in held
        if name not in used and not any(fnmatchcase(name, each) for each in ignored)
    ]
    if others and not files.is_table(path):
        raise InputError(
            f"{path} has unknown arrays {listed(others)}",
            "name the arrays to read (logits=, probs=, labels=) or to ignore (ignore=[...])",
            "name the arrays to read (--logits, --probs, --labels) or to ignore (--ignore NAME)",
        )
