"""JSON records of sliced calibrators, treated as untrusted input."""

import math
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
from torch import Tensor

from calibrant.calibrators import records
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.records import check_keys, typed
from calibrant.calibrators.slice_estimates import CrossValidation
from calibrant.calibrators.sliced import SUPPORTED, SlicedCalibrator

TENSORS = ("examples", "own", "precisions", "tau")
PLAIN = ("columns", "slices", "cross_validation")
# Calibrators of all examples that are allowed.
INSIDE = SUPPORTED


def tensors_of(sliced: SlicedCalibrator) -> dict[str, Tensor]:
    """The tensors by name, without those of the calibrator of all examples."""
    return {name: getattr(sliced, name) for name in TENSORS}


def encoded(sliced: SlicedCalibrator, *, inline: bool) -> dict[str, Any]:
    """Convert all but the calibrator of all examples to JSON."""
    return {
        "columns": list(sliced.columns),
        "slices": [list(key) for key in sliced.keys],
        "cross_validation": encoded_scores(sliced.cross_validation),
        **{n: records.encoded(v, inline=inline) for n, v in tensors_of(sliced).items()},
    }


def decoded(
    given: Mapping[str, Any], overall: Calibrator, loaded: Mapping[str, np.ndarray]
) -> SlicedCalibrator:
    """Convert JSON to a sliced calibrator; `loaded` is from the tensor file."""

    def texts(where: str, value: Any) -> tuple[str, ...]:
        return tuple(typed(where, each, str) for each in typed(where, value, list))

    slices = typed("slices", given["slices"], list)
    return SlicedCalibrator(
        overall=overall,
        columns=texts("columns", given["columns"]),
        keys=tuple(texts("slices", key) for key in slices),
        cross_validation=decoded_scores(given["cross_validation"]),
        **{n: records.decoded(n, given[n], Tensor, loaded.get(n)) for n in TENSORS},
    )


def encoded_scores(given: CrossValidation) -> dict[str, Any]:
    """Convert to JSON, which has neither NaN nor infinity."""
    return {k: v if math.isfinite(v) else None for k, v in given._asdict().items()}


def decoded_scores(given: Any) -> CrossValidation:
    """Convert JSON to the result of a cross-validation."""
    scores = typed("cross_validation", given, dict)
    hints = get_type_hints(CrossValidation)
    check_keys("cross_validation", scores, hints)
    values = {
        name: math.nan if scores[name] is None else typed(name, scores[name], kind)
        for name, kind in hints.items()
    }
    return CrossValidation(**{n: hints[n](values[n]) for n in hints})
