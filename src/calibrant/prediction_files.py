"""Arrays of predictions as a file holds them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant import files
from calibrant.array_names import Names, Requested, find_names
from calibrant.files.checks import is_text


@dataclass(frozen=True, eq=False)
class PredictionArrays:
    """What a file holds, not yet checked.

    Attributes:
        path: as given; errors name it.
        parts: the files that were read.
        names: of the arrays.
        scores: (n,) of class 1, (n, k), or (n, k, ...) of pixels or tokens.
        labels: (n, ...) class indices or names, or correctness; None if the file has none.
        extras: weights and groups, if the file has them.
        slices: columns of slices, as requested.
        label_columns: of several labels, the columns or the array that holds them.
        class_names: given, or from the names of the columns.
        positive: of scores in one column, the label of the class they score.
    """

    path: str | Path
    parts: tuple[Path, ...]
    names: Names
    scores: NDArray[Any]
    labels: NDArray[Any] | None
    extras: dict[str, NDArray[Any]]
    class_names: tuple[str, ...] | None
    positive: str | int | None = None
    slices: dict[str, NDArray[Any]] = field(default_factory=dict)
    label_columns: tuple[str, ...] = ()

    @property
    def class_labels(self) -> NDArray[Any] | None:
        """Labels as indices or class names; columns p1, p2, ... number the classes of labels."""
        numbers = self.class_names if self.class_names == self.names.classes else None
        if self.labels is None or is_text(self.labels) or not numbers or not numbers[0].isdigit():
            return self.labels
        return np.array([f"{label:g}" for label in self.labels])


def read_arrays(
    path: str | Path,
    requested: Requested,
    *,
    class_names: Sequence[str] | None = None,
    positive: str | int | None = None,
    max_expansion: float = 100.0,
) -> PredictionArrays:
    """Read the arrays of a file, or of all files that match a pattern.

    Args:
        path: the file or the pattern.
        requested: what to read.
        class_names: k names.
        positive: of scores in one column, the label of the class they score.
        max_expansion: as in `files.read`.
    """
    parts = files.expand(path)
    names = find_names(parts, requested)
    labelled = requested.need_labels or names.labels in files.columns(parts[0])
    labels_too = [names.labels] if labelled else []
    arrays = files.read_parts(
        parts,
        [*names.scores, *labels_too, *names.optional],
        text=(names.labels, "groups"),
        max_expansion=max_expansion,
    )
    columns = [arrays[name] for name in names.scores]
    if len(columns) > 1 and any(column.ndim != 1 for column in columns):
        raise ValueError(f"{path}: several arrays are named, so each must be one column of scores")
    scores = np.stack(columns, axis=1) if len(columns) > 1 else columns[0]
    labels = arrays[names.labels] if labelled else None
    classes = names.classes if class_names is None else tuple(class_names)
    extras = {name: arrays[name] for name in names.optional}
    slices = files.read_strings(parts, requested.by, missing=requested.missing)
    return PredictionArrays(
        path, tuple(parts), names, scores, labels, extras, classes, positive, slices
    )
