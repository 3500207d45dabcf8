"""Files of named numeric arrays, treated as untrusted input."""

from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrant.advice import InputError
from calibrant.files import csv_files, npz, parquet, tensors, tsv_files
from calibrant.files.atomic import replacing
from calibrant.files.checks import Limits, check_dtype, check_file, is_text
from calibrant.files.tables import array_names, numbered_columns

__all__ = [
    "FORMATS",
    "array_columns",
    "array_names",
    "columns",
    "expand",
    "is_table",
    "names",
    "read",
    "read_optional",
    "read_parts",
    "read_strings",
    "rewrite",
    "write",
]


@runtime_checkable
class Format(Protocol):
    """The interface of a module of a file format."""

    def names(self, path: Path) -> list[str]:
        """Names of the arrays in the file."""

    def read(
        self, path: Path, requested: Sequence[str], limits: Limits, text: Sequence[str] = ()
    ) -> dict[str, NDArray[Any]]:
        """Read the requested arrays, after checking all sizes that the file declares.

        Those in `text` may hold strings.
        """

    def write(self, handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the arrays to an open file."""


@runtime_checkable
class TableFormat(Format, Protocol):
    """The interface of a module of a format of tables."""

    def columns(self, path: Path) -> list[str]:
        """Columns of the table."""

    def read_optional(
        self, path: Path, requested: Sequence[str], limits: Limits
    ) -> dict[str, NDArray[Any]]:
        """Read columns of numbers in which values may be missing, which are NaN."""

    def rewrite(
        self,
        paths: Sequence[Path],
        handle: BinaryIO,
        replaced: Mapping[str, NDArray[Any] | None],
        limits: Limits,
    ) -> None:
        """Write tables below each other, with other values in some columns, or without them."""


FORMATS: dict[str, Format] = {
    ".npz": npz,
    ".parquet": parquet,
    ".csv": csv_files,
    ".tsv": tsv_files,
    ".safetensors": tensors,
}


def expand(pattern: str | Path) -> list[Path]:
    """Expand a path or a glob pattern to files, sorted by name.

    An existing file whose name contains brackets or stars is not a pattern.
    """
    path = Path(pattern)
    if path.is_file() or not has_magic(str(pattern)):
        _check_file(path)
        return [path]
    found = sorted(Path(match) for match in glob(str(pattern), recursive=True))
    found = [match for match in found if match.is_file()]
    if not found:
        raise FileNotFoundError(f"no files match '{pattern}'")
    return found


def is_table(path: Path) -> bool:
    """Whether the file holds a table, which may have other columns."""
    return isinstance(_format(path), TableFormat)


def names(path: Path) -> list[str]:
    """Names of the arrays that can be read from the file."""
    _check_file(path)
    return _format(path).names(path)


def columns(path: Path) -> list[str]:
    """Columns of a table as they are; names of the arrays of other files."""
    _check_file(path)
    form = _format(path)
    return form.columns(path) if isinstance(form, TableFormat) else form.names(path)


def array_columns(path: Path, held: Sequence[str], name: str) -> list[str]:
    """The columns `held` by a table that make up an array; elsewhere the array itself."""
    return (is_table(path) and numbered_columns(path, held, name)) or [name]


def read(
    path: Path,
    requested: Sequence[str],
    *,
    text: Sequence[str] = (),
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the requested arrays of one file, in this order: in native byte order.

    Args:
        path: a file with one of the suffixes of `FORMATS`.
        requested: names of arrays; in a table `logits` is also `logits_0, logits_1, ...`.
        text: those that may hold strings.
        max_bytes: memory limit of one array (of a table: of all of them).
        max_expansion: largest ratio of size in memory to stored size, for sizes above 64 MB.

    Raises:
        ValueError: the file is damaged, declares wrong sizes, or lacks a requested array.
        OSError: the file does not exist or cannot be opened.
    """
    _check_file(path)
    return _format(path).read(path, requested, Limits(max_bytes, max_expansion), text)


def read_strings(
    paths: Sequence[Path], requested: Sequence[str], *, missing: bool = False
) -> dict[str, NDArray[Any]]:
    """Read columns that may hold strings from every part; those of csv files as written.

    A csv file does not tell 7 and "07" apart, and `read` decides by the first row. With `missing`,
    values of tables may be: they are an empty string, None or NaN.
    """
    if not requested:
        return {}
    parts = []
    for path in paths:
        _check_file(path)
        if _format(path) in (csv_files, tsv_files):
            parts.append(csv_files.read_strings(path, requested, missing=missing))
        elif missing and _format(path) is parquet:
            parts.append(parquet.read_missing(path, requested, Limits(64 * 2**30, 100.0)))
        else:
            parts.append(read(path, requested, text=requested))
    return {name: np.concatenate([part[name] for part in parts]) for name in requested}


def read_parts(
    paths: Sequence[Path],
    requested: Sequence[str],
    *,
    text: Sequence[str] = (),
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the same arrays from every part and concatenate them; the limits hold per part.

    Empty parts are not compared with the others, since they add nothing.
    """
    if not paths:
        raise ValueError("need at least 1 file, got 0")
    limits: dict[str, Any] = {"max_bytes": max_bytes, "max_expansion": max_expansion}
    parts = [read(path, requested, text=text, **limits) for path in paths]
    rows = [_rows(path, part) for path, part in zip(paths, parts, strict=True)]
    used = [i for i, count in enumerate(rows) if count > 0] or [0]
    for i in used[1:]:
        _check_alike(paths[i], parts[i], paths[used[0]], parts[used[0]])
    return {name: np.concatenate([parts[i][name] for i in used]) for name in parts[0]}


def read_optional(
    paths: Sequence[Path],
    requested: Sequence[str],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read arrays of numbers from every part; empty cells and nulls of tables are NaN."""
    limits, parts = Limits(max_bytes, max_expansion), []
    for path in paths:
        _check_file(path)
        form = _format(path)
        read_one = form.read_optional if isinstance(form, TableFormat) else form.read
        parts.append(read_one(path, requested, limits))
        _check_alike(path, parts[-1], paths[0], parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in requested}


def write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays atomically: `path` is the old file or the complete new one.

    Raises:
        ValueError: unknown suffix, or a name or an array that the format cannot store.
        OSError: no such folder, disk full, no permission; the old file is unchanged.
    """
    form = _format(path)
    if not arrays:
        raise ValueError(f"nothing to write to {path}: no arrays")
    native = {}
    for name, array in arrays.items():
        if not name or name != name.strip() or not name.isprintable() or set(name) & {"/", "\\"}:
            raise ValueError(
                f"array name must be printable, with no slash or outer space; got {name[:60]!r}"
            )
        if not _holds_strings(array):
            check_dtype(f"array {name!r}", array.dtype)
        native[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    with replacing(path) as handle:
        form.write(handle, native)


def rewrite(
    path: Path,
    paths: Sequence[Path],
    replaced: Mapping[str, NDArray[Any] | None],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> None:
    """Copy tables to a new one of their format, with other values in some columns; atomic.

    Args:
        path: the new table.
        paths: parts of the old one, all with the same columns.
        replaced: columns to their new values, (n,) or lists (n, k), or None to leave them out; new
            columns go to the end.
        max_bytes: largest size in memory, as in `read`.
        max_expansion: largest compression ratio, as in `read`.
    """
    form = _format(path)
    if not isinstance(form, TableFormat) or any(_format(each) is not form for each in paths):
        raise ValueError(f"cannot copy the columns of {paths[0]} to {path}: another format")
    with replacing(path) as handle:
        form.rewrite(paths, handle, replaced, Limits(max_bytes, max_expansion))


def _holds_strings(array: NDArray[Any]) -> bool:
    """Whether an array holds strings only: objects may be anything."""
    return is_text(array) and all(isinstance(each, str) for each in array.flat)


def _format(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        problem = f"{path}: unknown file type {suffix!r}; expected one of {known}"
        if suffix == ".jsonl":
            python = "calibrant.language_models.read reads JSON lines"
            raise InputError(problem, python, "JSON lines of a language model need --format")
        raise ValueError(problem)
    return FORMATS[suffix]


def _check_file(path: Path) -> None:
    if path.is_dir():
        suffix = ".jsonl" if any(path.glob("*.jsonl")) else ".npz"
        raise IsADirectoryError(
            f"{path} is a folder; give a file, or a pattern such as {path}/*{suffix}"
        )
    check_file(path)


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
