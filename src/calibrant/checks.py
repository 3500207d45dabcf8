"""Validation of user input; values that passed are not checked again."""

import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.advice import InputError, InputTypeError
from calibrant.scoped_warnings import warn
from calibrant.shapes import Values, shape

Kind = Literal["probs", "logits", "confidence"]

# Tolerance of the sum of probabilities, by dtype.
SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Outside this range sums of weights and of their squares lose precision.
SUM_OF_WEIGHTS = (1e-10, 1e15)
FEW = 20
# Labels by which segmentation sets mark pixels without a class.
IGNORED = (254, 255)
# Booleans as other programs write them to text.
FLAGS = {"false": 0, "true": 1}


def as_array(name: str, value: Any) -> np.ndarray:
    """Convert an array or nested lists of any type."""
    if np.ma.is_masked(value):
        raise TypeError(f"{name} is a masked array: fill or drop the masked rows first")
    try:
        return np.asarray(value)
    except ValueError:
        if not _is_ragged(value):
            raise
        raise ValueError(f"{name}: rows differ in length, all must have the same") from None


def _is_ragged(value: Any) -> bool:
    """Whether nested sequences have items of different lengths, or both numbers and lists."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    shapes = {
        tuple(getattr(item, "shape", (len(item),) if isinstance(item, Sequence) else ()))
        for item in value
    }
    return len(shapes) > 1 or any(map(_is_ragged, value))


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Convert an array or nested lists of real numbers."""
    array = as_array(name, value)
    if array.dtype.kind in "OSUcMmV":
        raise TypeError(f"{name}: dtype {array.dtype} is not supported, pass numbers")
    return array


def as_tensor(name: str, value: Any) -> Tensor:
    """Convert a tensor, an array or nested lists to a dense tensor without gradient."""
    if not isinstance(value, Tensor):
        array = as_numbers(name, value)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            if array.size and array.max() > np.iinfo(np.int64).max:
                raise ValueError(f"{name}: {array.max()} is too large for a 64-bit integer")
            native = native.astype(np.int64)
        elif array.dtype == np.longdouble:
            native = native.astype(np.float64)
        # torch warns about read-only arrays, and refuses negative strides.
        plain = native.flags.writeable and min(native.strides, default=0) >= 0
        value = torch.from_numpy(native if plain else native.copy())
    if value.is_complex():
        raise TypeError(f"{name}: dtype {value.dtype} is not supported, pass real numbers")
    if value.layout != torch.strided:
        raise TypeError(f"{name} is a sparse tensor: pass {name}.to_dense()")
    if value.device.type == "meta":
        raise ValueError(f"{name} is on the meta device and has no values")
    tensor: Tensor = value.detach()
    return tensor


def as_scores(name: str, value: Any) -> Tensor:
    """Check (n, k) logits or probabilities for type and shape; half precision is promoted."""
    scores = as_tensor(name, value)
    refuse_bool(name, scores)
    if scores.ndim == 1 or (scores.ndim == 2 and scores.shape[1] == 1):
        raise ValueError(
            f"{name} has shape {shape(scores)}: for binary scores use "
            "Predictions.from_binary(scores, labels, kind=...) or pass both columns, (n, 2)"
        )
    if scores.ndim != 2:
        raise ValueError(
            f"{name} must be (n, k), got {shape(scores)}: "
            "for segmentation or tokens use Predictions.from_dense(logits, labels, ...)"
        )
    if not scores.shape[0] or not scores.shape[1]:
        raise ValueError(f"need at least 1 example, got {name} of shape {shape(scores)}")
    return promote_dtype(scores)


def refuse_bool(name: str, scores: Tensor) -> Tensor:
    """Refuse boolean scores."""
    if scores.dtype == torch.bool:
        raise TypeError(f"{name}: dtype bool is not supported, pass numbers")
    return scores


def promote_dtype(scores: Tensor) -> Tensor:
    """Convert half precision to float32 and integers to float64; keep float32 and float64."""
    if scores.dtype in (torch.float32, torch.float64):
        return scores
    return scores.to(torch.float32 if scores.dtype.is_floating_point else torch.float64)


def as_labels(
    value: Any, *, examples: int, classes: int, name: str, class_names: Sequence[str] | None = None
) -> Tensor:
    """Check that labels are n class indices in [0, k - 1]; integral floats are cast."""
    flags = as_flags("labels", value) if classes == 2 and class_names is None else None
    labels = as_tensor("labels", _named(value, class_names) if flags is None else flags)
    if labels.ndim == 2 and shape(labels) == (examples, classes):
        soft = "soft labels are not supported by calibration errors"
        raise InputError(
            f"labels have shape {shape(labels)}, expected ({examples},)",
            "pass class indices, labels.argmax(1) if these are one-hot, or use MultiLabel(logits, "
            f"labels) if an example may have several; {soft}",
            "add --multi-label if an example may have several labels; write the index of the class "
            f"if these are one-hot; {soft}",
        )
    if labels.ndim != 1:
        raise ValueError(f"labels must be ({examples},), got {shape(labels)}")
    if len(labels) != examples:
        hint = f": is {name} transposed?" if len(labels) == classes else ""
        raise ValueError(f"{name} has {examples} rows, labels {len(labels)}{hint}")
    if labels.is_floating_point():
        bad = (labels != labels.round()) | ~labels.isfinite()
        if bad.any():
            row = int(bad.nonzero()[0])
            raise ValueError(f"labels must be integers, got {labels[row].item()} at row {row}")
    labels = labels.long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        python = f"drop such rows first, or use from_dense(..., ignore_index={low})"
        command = f"add --ignore-index {low} to drop such rows"
        if classes == 2 and (low, high) == (-1, 1) and labels.all():
            python = command = "labels look like -1/1: use 0 and 1"
        raise InputError(
            f"label {low} at row {int(labels.argmin())} is out of range for {classes} classes "
            f"(0..{classes - 1})",
            python,
            command,
        )
    if high >= classes:
        hint = "; labels look 1-based, subtract 1" if high == classes and low >= 1 else ""
        problem = (
            f"label {high} at row {int(labels.argmax())} is out of range for {classes} classes "
            f"(0..{classes - 1}){hint}"
        )
        if high in IGNORED:
            use = "if it marks what to ignore,"
            raise InputError(
                problem, f"{use} pass ignore_index={high}", f"{use} add --ignore-index {high}"
            )
        raise ValueError(problem)
    return labels


def as_correct(value: Any, *, examples: int) -> Tensor:
    """Check that correctness is n booleans, True or False as text, or numbers that are 0 or 1."""
    flags = as_flags("correct", value)
    if flags is None and not isinstance(value, Tensor):
        first = next(iter(as_array("correct", value).flat), None)
        if isinstance(first, str):
            raise TypeError(f"correct must be 0 or 1, or all True or False, got {str(first)!r}")
    correct = as_tensor("correct", value if flags is None else flags).cpu()
    if shape(correct) != (examples,):
        raise ValueError(f"correct must be ({examples},), got {shape(correct)}")
    bad = (correct != 0) & (correct != 1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(f"correct must be 0 or 1, got {correct[row].item():g} at row {row}")
    return correct.long()


def as_flags(name: str, value: Any) -> np.ndarray | None:
    """Convert the strings True and False, in any case, to 1 and 0; None for anything else."""
    array = None if isinstance(value, Tensor) else as_array(name, value)
    if array is None or array.dtype.kind not in "OU" or not array.size:
        return None
    if not all(isinstance(item, str) and item.lower() in FLAGS for item in array.flat):
        return None
    return np.array([FLAGS[item.lower()] for item in array.flat]).reshape(array.shape)


def _named(value: Any, class_names: Sequence[str] | None) -> Any:
    """Replace labels given as class names by their indices."""
    if isinstance(value, Tensor):
        return value
    array = as_array("labels", value)
    if array.dtype.kind not in "OSU" or not all(isinstance(item, str) for item in array.flat):
        return value
    if class_names is None:
        raise InputTypeError(
            "labels are strings",
            "pass class_names=[...] to say which class is which",
            "give --names A,B,... to say which class is which",
        )
    position = {name: index for index, name in enumerate(class_names)}
    unknown = sorted({str(item) for item in array.flat} - set(position))
    if unknown:
        shown = f"{list(class_names[:20])}{', ...' * (len(class_names) > 20)}"
        raise ValueError(f"label {unknown[0]!r} is not in class_names {shown}")
    return np.array([position[str(item)] for item in array.flat])


def as_weights(value: Any, *, examples: int) -> Tensor:
    """Check that weights are n finite nonnegative numbers, with a sum in range."""
    weights = as_tensor("weights", as_values("weights", value))
    if len(weights) != examples:
        raise ValueError(f"weights must be ({examples},), got {shape(weights)}")
    if not weights.any():
        raise ValueError("weights are all zero; at least one must be positive")
    total = float(weights.sum())
    check_total(total)
    # A few may be the soft labels of one example.
    if total <= 1 + 1e-6 and examples >= FEW and float(weights.max()) < 1:
        warn(
            f"weights sum to {total:g}, but are counts of examples: rescale them to a mean "
            "of 1, or AURC, bins of equal mass and debiased errors change"
        )
    return weights


def check_total(total: float) -> None:
    """Refuse a sum of weights whose squares and quotients would lose precision."""
    low, high = SUM_OF_WEIGHTS
    if not low <= total <= high:
        raise ValueError(
            f"weights must sum to a number from {low:g} to {high:g}, got {total:g}: rescale them, "
            "for instance to a mean of 1"
        )


def as_groups(value: Any, *, examples: int) -> Tensor:
    """Encode groups, numbers or strings, as 0, 1, ... in sorted order."""
    if isinstance(value, Tensor):
        value = as_tensor("groups", value).cpu().numpy()
    array = as_array("groups", value)
    if array.shape != (examples,):
        raise ValueError(f"groups must be ({examples},), got {array.shape}")
    try:
        number = np.unique(array, return_inverse=True)[1]
    except TypeError:
        types = ", ".join(sorted({type(item).__name__ for item in array.flat}))
        raise TypeError(f"groups must be all numbers or all strings, got {types}") from None
    return torch.from_numpy(number.astype(np.int64))


def as_index(value: Any, *, examples: int) -> Tensor:
    """Check positions in n examples, or a mask of n booleans; return at least one position."""
    index = as_tensor("index", value).cpu()
    if index.ndim != 1:
        raise ValueError(f"index must be 1-D, got shape {shape(index)}")
    if index.dtype == torch.bool:
        if len(index) != examples:
            raise ValueError(f"the mask has {len(index)} booleans, there are {examples} examples")
        index = index.nonzero()[:, 0]
    if not len(index):
        raise ValueError("need at least 1 example, the index selects none")
    if index.is_floating_point():
        raise TypeError(f"index must be integers or booleans, got dtype {index.dtype}")
    index = index.long()
    outside = (index < -examples) | (index >= examples)
    if outside.any():
        position = int(index[outside][0])
        raise IndexError(f"position {position} is out of range for {examples} examples")
    return index


def as_values(name: str, value: Any, *, high: float = math.inf) -> Values:
    """Check (n,) finite numbers in [0, high]; float64 arrays are not copied."""
    if isinstance(value, Tensor):
        values = as_tensor(name, value).cpu().double().numpy()
    else:
        values = as_numbers(name, value).astype(np.float64, copy=False)
    if values.ndim != 1:
        raise ValueError(f"{name} must be (n,), got {values.shape}")
    top = min(high, sys.float_info.max)
    # Written so that NaN fails.
    if len(values) and not (values.min() >= 0 and values.max() <= top):
        row = int(np.flatnonzero(~((values >= 0) & (values <= top)))[0])
        bad = float(values[row])
        must = "not be negative" if high == math.inf else f"lie in [0, {high:g}]"
        must = must if math.isfinite(bad) else "be finite"
        raise ValueError(f"{name} must {must}, got {bad:g} at row {row}")
    return values


def refuse_non_finite(name: str, scores: Tensor, *, rows: Tensor, what: str = "class") -> None:
    """Name the first NaN or inf; `rows` marks the invalid examples, `what` says what columns are.

    A -inf among logits masks a class and is valid; a row of -inf only is not.
    """
    for kind, found in (("NaN", scores.isnan()), ("inf", scores.isposinf())):
        if found.any():
            row, column = (int(i) for i in found.nonzero()[0])
            raise ValueError(
                f"{name} contains {int(found.sum())} {kind} (first at row {row}, {what} {column}); "
                "fix or drop those rows first"
            )
    if rows.any():
        row = int(rows.nonzero()[0])
        raise ValueError(f"{name}: row {row} is -inf for every class; at least one must be finite")


def check_probs(
    probs: Tensor,
    *,
    tolerance: float,
    any_sum: bool = False,
    what: str = "class",
    make: str = "Predictions",
) -> None:
    """Refuse invalid probabilities, with a hint at what they look like and how to `make` them."""
    low, high = (float(extreme) for extreme in probs.aminmax())
    if math.isnan(low) or high == math.inf:
        refuse_non_finite("probs", probs, rows=torch.zeros(0))
    sums = probs.sum(1, dtype=torch.float64)
    if low < 0 or (high > 1 + 1e-6 and not any_sum):
        extreme = low if low < 0 else high
        row, column = (int(i) for i in (probs == extreme).nonzero()[0])
        if high <= 0:
            python = f"these look like log-probabilities: use {make}(log_probs, labels)"
            command = "these look like log-probabilities: read them with --logits"
        elif low >= 0 and (
            float((sums - 100).abs().max()) < 2 or (probs.shape[1] == 1 and 2 < high <= 100)
        ):
            python = command = "these look like percent: divide by 100"
        else:
            python = f"if these are logits use {make}(logits, labels)"
            command = "if these are logits read them with --logits"
        raise InputError(
            f"probs outside [0, 1]: {'min' if low < 0 else 'max'} {extreme:.4g} "
            f"(row {row}, {what} {column})",
            python,
            command,
        )
    off = sums == 0 if any_sum else (sums - 1).abs() > tolerance
    if off.any():
        row = int(off.nonzero()[0])
        raise InputError(
            f"{int(off.sum())} of {len(probs)} rows of probs do not sum to 1 within "
            f"{tolerance:g} (row {row}: {float(sums[row]):.4g})",
            "pass normalize=True to divide by the sum, or use Predictions(logits, labels) if these "
            "are logits",
            "add --normalize to divide by the sum, or --logits if these are logits",
        )
