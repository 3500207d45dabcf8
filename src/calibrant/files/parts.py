"""Concatenate arrays of several files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def joined(
    paths: Sequence[Path], parts: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """Concatenate the parts; empty parts are not compared, since they add nothing."""
    rows = [_rows(path, part) for path, part in zip(paths, parts, strict=True)]
    used = [i for i, count in enumerate(rows) if count > 0] or [0]
    for i in used[1:]:
        _check_alike(paths[i], parts[i], paths[used[0]], parts[used[0]])
    return {name: np.concatenate([parts[i][name] for i in used]) for name in parts[0]}


def _rows(path: Path, part: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of rows, which all arrays of a part must have."""
    counts = {}
    for name, array in part.items():
        if array.ndim == 0:
            raise ValueError(f"{path}: {name!r} is a single number; expected one row per example")
        counts[name] = len(array)
    if len(set(counts.values())) > 1:
        raise ValueError(f"{path}: arrays of one part must have equal rows, got {counts}")
    return next(iter(counts.values()), 0)


def _check_alike(
    path: Path, part: Mapping[str, NDArray[Any]], first: Path, model: Mapping[str, NDArray[Any]]
) -> None:
    for name, array in part.items():
        shape, expected = array.shape[1:], model[name].shape[1:]
        if shape != expected:
            raise ValueError(f"{path}: rows of {name!r} have shape {shape}, {expected} in {first}")
        if array.dtype.kind != model[name].dtype.kind:
            raise ValueError(
                f"{path}: {name!r} is {array.dtype}, but {model[name].dtype} in {first}"
            )
