"""Files of named numeric arrays, treated as untrusted input."""

from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from numpy.typing import NDArray

from calibrant.files import csv_files, npz, parquet, tensors
from calibrant.files.atomic import replacing
from calibrant.files.checks import Limits, check_dtype, check_file
from calibrant.files.parts import joined


@runtime_checkable
class Format(Protocol):
    """The interface of a module of a file format."""

    def names(self, path: Path) -> list[str]:
        """Names of the arrays in the file."""

    def read(self, path: Path, requested: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
        """Read the requested arrays, after checking all sizes that the file declares."""

    def write(self, handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the arrays to an open file."""


FORMATS: dict[str, Format] = {
    ".npz": npz,
    ".parquet": parquet,
    ".csv": csv_files,
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
    return _format(path) in (csv_files, parquet)


def names(path: Path) -> list[str]:
    """Names of the arrays that can be read from the file."""
    _check_file(path)
    return _format(path).names(path)


def read(
    path: Path,
    requested: Sequence[str],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the requested arrays of one file, in this order: numeric, in native byte order.

    Args:
        path: a file with one of the suffixes of `FORMATS`.
        requested: names of arrays; in a table `logits` is also `logits_0, logits_1, ...`.
        max_bytes: memory limit of one array (of a table: of all of them).
        max_expansion: largest ratio of size in memory to stored size, for sizes above 64 MB.

    Raises:
        ValueError: the file is damaged, declares wrong sizes, or lacks a requested array.
        OSError: the file does not exist or cannot be opened.
    """
    _check_file(path)
    return _format(path).read(path, requested, Limits(max_bytes, max_expansion))


def read_parts(
    paths: Sequence[Path],
    requested: Sequence[str],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the same arrays from every part and concatenate them; the limits hold per part."""
    if not paths:
        raise ValueError("need at least 1 file, got 0")
    parts = [
        read(path, requested, max_bytes=max_bytes, max_expansion=max_expansion) for path in paths
    ]
    return joined(paths, parts)


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
        check_dtype(f"array {name!r}", array.dtype)
        native[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    with replacing(path) as handle:
        form.write(handle, native)


def _format(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"{path}: unknown file type {suffix!r}; expected one of {known}")
    return FORMATS[suffix]


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; give a file, or a pattern such as {path}/*.npz"
        )
    check_file(path)
