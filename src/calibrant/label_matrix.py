"""Validation of several labels for each example."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import checks
from calibrant.array_names import class_names_of
from calibrant.files.checks import listed
from calibrant.shapes import LabelMatrix, Logits, shape

# A label that is not known, and the other value that users mark it with.
MISSING, IGNORED = -1, -100


def as_label_matrix(value: Any, *, shape: tuple[int, int]) -> LabelMatrix:
    """Check (n, k) labels: 0, 1 or booleans; NaN, -1 and -100 become -1, not known."""
    flags = checks.as_flags("labels", value)
    if flags is None:
        value = _without_none(value)
    given = checks.as_tensor("labels", value if flags is None else flags).cpu()
    if tuple(given.shape) != shape:
        expected = f"one row for each example and one column for each label, {shape}"
        raise ValueError(f"labels must have {expected}, got {tuple(given.shape)}")
    unknown = given.isnan() | (given == MISSING) | (given == IGNORED)
    wrong = (given != 0) & (given != 1) & ~unknown
    if wrong.any():
        row, column = (int(at) for at in wrong.nonzero()[0])
        raise ValueError(
            f"labels must be 0 or 1, or NaN, -1 or -100 if not known, got "
            f"{given[row, column].item():g} at row {row}, label {column}"
        )
    if bool((given == MISSING).any()) and bool((given == 1).any()) and not bool((given == 0).any()):
        raise ValueError(
            "labels hold -1 and no 0: use 0 for absent labels, and -1 or NaN for unknown ones"
        )
    return torch.where(unknown, MISSING, given).long()


def _without_none(value: Any) -> Any:
    """NaN instead of None in arrays of objects and in lists."""
    array = None if isinstance(value, Tensor) else checks.as_array("labels", value)
    if array is None or array.dtype != object:
        return value
    known = [math.nan if item is None else item for item in array.flat]
    if not all(isinstance(item, bool | int | float | np.generic) for item in known):
        return value
    return np.array(known, dtype=float).reshape(array.shape)


def match_columns(
    scores: Any, labels: Any, names: Sequence[str] | None
) -> tuple[Any, Sequence[str] | None]:
    """Labels in the order of the scores, and names, if both are data frames.

    Columns are matched by their names, or by these without the common start: p_cat with y_cat. If
    no name is in both, columns are matched by position.
    """
    own, others = _columns(scores), _columns(labels)
    if own is None or others is None:
        return labels, names
    short, other = class_names_of(own), class_names_of(others)
    if set(own) != set(others) and short and other and not set(own) & set(others):
        own, others = short, other
    if set(own) != set(others) and set(own) & set(others):
        raise ValueError(
            f"columns of scores and of labels must have the same names, got {listed(own)} and "
            f"{listed(others)}"
        )
    if set(own) == set(others) and len(own) == len(others):
        labels = labels[[labels.columns[others.index(name)] for name in own]]
    numbered = own == tuple(map(str, range(len(own))))
    return labels, own if names is None and not numbered else names


def _columns(value: Any) -> tuple[str, ...] | None:
    """Names of the columns of a data frame; None for anything else."""
    columns = list(getattr(value, "columns", ()))
    if not columns or not all(isinstance(each, str | int | np.integer) for each in columns):
        return None
    return tuple(map(str, columns))


def as_positive_columns(name: str, value: Any) -> Logits:
    """Check (n, k) scores of labels; of a list of k arrays (n, 2) the second columns are taken."""
    if isinstance(value, list | tuple) and value and getattr(value[0], "ndim", 0) == 2:
        for at, part in enumerate(value):
            if shape_of(part) != (len(value[0]), 2):
                raise ValueError(
                    f"{name}: a list must hold an array ({len(value[0])}, 2) for each label, "
                    f"got {shape_of(part)} for label {at}"
                )
        value = torch.stack([checks.as_tensor(name, part)[:, 1] for part in value], 1)
    scores = checks.refuse_bool(name, checks.as_tensor(name, value)).cpu()
    if scores.ndim != 2 or not scores.numel():
        raise ValueError(
            f"{name} must be (n, k), one column for each label, with at least 1 example, got "
            f"{shape(scores)}"
        )
    scores = checks.promote_dtype(scores)
    checks.refuse_non_finite(name, scores, rows=torch.zeros(0), what="label")
    if name == "probs":
        checks.check_probs(scores, tolerance=math.inf, what="label", make="MultiLabel")
    return scores.contiguous()


def shape_of(part: Any) -> tuple[int, ...]:
    """Shape of an array or a tensor."""
    return tuple(part.shape) if isinstance(part, Tensor) else np.shape(part)
