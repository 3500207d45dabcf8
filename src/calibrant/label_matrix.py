"""Validation of several labels for each example."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import checks
from calibrant.shapes import LabelMatrix, Logits, shape

# A label that is not known, and the other value that users mark it with.
MISSING, IGNORED = -1, -100


def as_label_matrix(value: Any, *, shape: tuple[int, int]) -> LabelMatrix:
    """Check (n, k) labels: 0, 1 or booleans; NaN, -1 and -100 become -1, not known."""
    flags = checks.as_flags("labels", value)
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
    checks.refuse_non_finite(name, scores, rows=torch.zeros(0))
    if name == "probs":
        checks.check_probs(scores, tolerance=math.inf)
    return scores.contiguous()


def shape_of(part: Any) -> tuple[int, ...]:
    """Shape of an array or a tensor."""
    return tuple(part.shape) if isinstance(part, Tensor) else np.shape(part)
