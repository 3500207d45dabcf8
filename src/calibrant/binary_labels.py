"""Labels of two classes that come with the scores of one of them."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.advice import InputError
from calibrant.checks import IGNORED, as_array, as_flags, as_tensor
from calibrant.scoped_warnings import warn

SHOWN = 20


def binary_labels(value: Any, positive: str | int | None) -> tuple[Any, tuple[str, str] | None]:
    """Labels as 0 and 1, and the two values they had if these were others.

    Args:
        value: labels of any two values.
        positive: the value of the class that is scored. True and False need none, nor -1 and 1.

    Returns:
        Labels and names of the classes. Labels that are invalid are returned as they are.
    """
    chosen = None if positive is None else str(positive)
    flags = as_flags("labels", value)
    if flags is not None:
        # The class keeps the name by which `positive` gives it, in any case.
        names = {each.lower(): each for each in ("False", "True", chosen or "True")}
        value, values = np.where(flags, names["true"], names["false"]), list(names.values())[:2]
        chosen = chosen or "True"
    else:
        values = _values(value)
    if chosen is not None and values and chosen not in values:
        shown = ", ".join(values[:SHOWN]) + ", ..." * (len(values) > SHOWN)
        raise InputError(
            f"{str(positive)!r} is not one of {shown}",
            "pass one of these as positive=...",
            "give one of these as --positive",
        )
    if chosen is None and values == ["-1", "1"]:
        warn("labels are -1 and 1: 1 is read as the class of the scores")
        chosen = "1"
    if not values or values == ["0", "1"] or (chosen is None and _has_ignored(values)):
        return value, None
    if len(values) == 1:
        raise InputError(
            f"labels are all {values[0]}, the other class has no name",
            "pass class_names=[...] of both, the scored class last",
            "give --names of both, the scored class last",
        )
    if len(values) != 2:
        raise InputError(
            f"1-D scores mean two classes, labels have {len(values)}",
            "pass scores of shape (n, k)",
            "give the scores of all classes",
        )
    if chosen is None:
        raise InputError(
            f"labels are {' and '.join(values)}, scores are those of one class",
            "pass positive=... to name it, or class_names=[...] of both",
            "give --positive NAME to name it, or --names of both, the scored class last",
        )
    other = values[values[0] == chosen]
    if isinstance(value, Tensor):
        return (value == int(chosen)).long(), (other, chosen)
    array = as_array("labels", value)
    scored = array == (chosen if array.dtype.kind in "OU" else int(chosen))
    return scored.astype(np.int64), (other, chosen)


def _values(value: Any) -> list[str]:
    """The different labels in order; 0 and 1 if there are no others, none if one is invalid."""
    if not isinstance(value, Tensor):
        array = as_array("labels", value)
        if array.dtype.kind in "OU" and all(isinstance(item, str) for item in array.flat):
            return sorted(set(array.flat))
    labels = as_tensor("labels", value)
    if not labels.numel():
        return []
    if labels.min() >= 0 and labels.max() <= 1:
        return ["0", "1"]
    found = np.unique(labels.cpu().double().numpy()).tolist()
    if len(found) < 2 or not all(math.isfinite(each) and each == int(each) for each in found):
        return []
    return [str(int(each)) for each in found]


def _has_ignored(values: list[str]) -> bool:
    """Whether 0 and 1 come with a value that usually marks what to ignore."""
    marks = {*map(str, IGNORED), "-1", "-100"}
    rest = set(values) - marks
    return len(rest) < len(values) and rest <= {"0", "1"}
