"""Files of named numeric arrays, read as if a stranger had written them."""

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
    """What the module of a file format offers."""

    def names(self, path: Path) -> list[str]:
        """Names of the arrays in the file."""

    def read(self, path: Path, wanted: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
        """The wanted arrays, after every claim of the file has been checked."""

    def write(self, handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put the arrays into an open file."""


FORMATS: dict[str, Format] = {
    ".npz": npz,
    ".parquet": parquet,
    ".csv": csv_files,
    ".safetensors": tensors,
}


def expand(pattern: str | Path) -> list[Path]:
    """The files that a path or a glob pattern means, sorted by name.

    A file whose own name has brackets or stars is taken as it is.
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
    """Whether the file holds a table, which may have columns that nobody asks for."""
    return _format(path) in (csv_files, parquet)


def names(path: Path) -> list[str]:
    """Names of the arrays that can be read from the file."""
    _check_file(path)
    return _format(path).names(path)


def read(
    path: Path,
    wanted: Sequence[str],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the wanted arrays of one file, in this order: numbers only, native byte order.

    Args:
        path: a file with one of the suffixes of `FORMATS`.
        wanted: names of arrays; in a table `logits` is also `logits_0, logits_1, ...`.
        max_bytes: the most memory that one array (of a table: all of them) may take.
        max_expansion: the most bytes in memory per byte stored, for anything over 64 MB.

    Raises:
        ValueError: the file is damaged, lies about its sizes, or lacks something wanted.
        OSError: the file is absent or cannot be opened.
    """
    _check_file(path)
    return _format(path).read(path, wanted, Limits(max_bytes, max_expansion))


def read_parts(
    paths: Sequence[Path],
    wanted: Sequence[str],
    *,
    max_bytes: int = 64 * 2**30,
    max_expansion: float = 100.0,
) -> dict[str, NDArray[Any]]:
    """Read the same arrays from every part and join them by rows; the limits hold per part.

    A part without rows adds nothing, so its other dimensions are not compared.
    """
    if not paths:
        raise ValueError("need at least 1 file, got 0")
    parts = [read(path, wanted, max_bytes=max_bytes, max_expansion=max_expansion) for path in paths]
    return joined(paths, parts)


def write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays so that `path` is the old file or the whole new one, never a part.

    Raises:
        ValueError: unknown suffix, a name or an array that the format cannot hold.
        OSError: no such folder, no room, no permission; the old file is untouched.
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
