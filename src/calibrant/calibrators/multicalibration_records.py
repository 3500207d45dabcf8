"""JSON records of multicalibrators, treated as untrusted input."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.calibrators import records
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.boosted_trees import TENSORS, BoostedTrees
from calibrant.calibrators.column_codes import ColumnCode
from calibrant.calibrators.multicalibration import STARTS, MultiCalibrator
from calibrant.calibrators.records import check_keys, typed
from calibrant.calibrators.sliced_records import decoded_scores, encoded_scores

PLAIN = ("columns", "features", "cross_validation")
# Calibrators of all examples that are allowed.
INSIDE = STARTS


def tensors_of(multi: MultiCalibrator) -> dict[str, Tensor]:
    """The tensors by name, without those of the calibrator of all examples."""
    return {name: getattr(multi.trees, name) for name in TENSORS}


def encoded(multi: MultiCalibrator, *, inline: bool) -> dict[str, Any]:
    """Convert all but the calibrator of all examples to JSON."""
    columns = [
        {"name": code.name, "categories": code.categories and list(code.categories)}
        for code in multi.codes
    ]
    return {
        "columns": columns,
        "features": multi.trees.features,
        "cross_validation": encoded_scores(multi.cross_validation),
        **{n: records.encoded(v, inline=inline) for n, v in tensors_of(multi).items()},
    }


def decoded(
    given: Mapping[str, Any], overall: Calibrator, loaded: Mapping[str, np.ndarray]
) -> MultiCalibrator:
    """Convert JSON to a multicalibrator; `loaded` is from the tensor file."""
    tensors = {n: records.decoded(n, given[n], Tensor, loaded.get(n)) for n in TENSORS}
    return MultiCalibrator(
        overall=overall,
        codes=tuple(map(_code, typed("columns", given["columns"], list))),
        trees=BoostedTrees(typed("features", given["features"], int), **tensors),
        cross_validation=decoded_scores(given["cross_validation"]),
    )


def _code(given: Any) -> ColumnCode:
    record = typed("columns", given, dict)
    check_keys("columns", record, ("name", "categories"))
    name, categories = typed("columns.name", record["name"], str), record["categories"]
    if categories is None:
        return ColumnCode(name)
    texts = typed("columns.categories", categories, list)
    return ColumnCode(name, tuple(typed("columns.categories", each, str) for each in texts))
