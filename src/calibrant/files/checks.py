"""Checks and digests that file formats share."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.advice import InputError

# Smaller arrays fit in memory at any ratio.
SMALL = 64 * 2**20
# Key of the metadata that holds digests, for formats without a checksum of the whole file.
DIGEST = "calibrant_sha256"


@dataclass(frozen=True)
class Limits:
    """Memory limits of a file: in bytes, and relative to the stored bytes."""

    max_bytes: int
    max_expansion: float


def one_line(text: object, limit: int = 200) -> str:
    """Make text from a file or a library safe to print: one short line, no control characters."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Format the first names of a list, quoted, and the number of the others."""
    shown = ", ".join(repr(one_line(name, 60)) for name in names[:limit])
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return f"[{shown}{more}]"


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the pairs of a JSON object; refuse duplicate keys."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(f"duplicate keys among {listed([key for key, _ in pairs])}")
    return record


def human(size: float) -> str:
    """Format a number of bytes.

    >>> human(1536), human(64 * 2**30)
    ('1.5 kB', '64.0 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def check_file(path: Path) -> None:
    """Refuse all but regular files: reading a pipe or a device could block for ever."""
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a device, a pipe or a socket"
        raise OSError(f"{path} is {kind}, not a file")


def check_size(path: Path, what: str, declared: int, stored: int, limits: Limits) -> None:
    """Refuse data that exceeds the limits, before any of it is read.

    Args:
        path: the file, for the message.
        what: the part of the file, such as `member logits`, for the message.
        declared: size in memory that the file declares.
        stored: size in the file.
        limits: limits of the caller.
    """
    if declared > limits.max_bytes:
        raise InputError(
            f"{path}: {what} declares {human(declared)}, more than {human(limits.max_bytes)}",
            "pass max_bytes=... if you trust it",
            "split the file into parts and give a pattern such as 'parts/*.npz'",
        )
    if declared > SMALL and declared > limits.max_expansion * stored:
        ratio = f"x{declared / stored:.0f}" if stored > 0 else "no bytes"
        raise InputError(
            f"{path}: {what} declares {human(declared)}, {human(stored)} stored "
            f"({ratio} > x{limits.max_expansion:g})",
            "pass max_expansion=... if you trust it",
            "add --max-expansion X if you trust it",
        )


def check_present(path: Path, requested: Sequence[str], held: Sequence[str]) -> None:
    """Refuse a file that lacks a requested name, and list its names."""
    for name in requested:
        if name not in held:
            raise ValueError(f"{path} has no {name!r}; it holds {listed(held)}")


def check_dtype(where: str, dtype: np.dtype[Any], *, text: bool = False) -> None:
    """Refuse all but numbers and booleans, and strings if `text`."""
    if dtype.hasobject:
        raise ValueError(
            f"{where}: object arrays are refused (loading one can run code); "
            "save it again as a numeric array, or strings as np.array(values, dtype=str)"
        )
    if text and dtype.kind == "U":
        return
    # The layout of a long double depends on the platform.
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(
            f"{where}: dtype {one_line(dtype, 60)} is not supported; "
            "expected float, integer or bool of at most 64 bits"
        )


def check_bools(where: str, values: NDArray[Any]) -> None:
    """Refuse booleans stored as bytes other than 0 and 1: numpy computes wrong results."""
    if values.dtype.kind == "b" and values.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{where}: bool array holds bytes other than 0 and 1; file is damaged")


def is_text(array: NDArray[Any]) -> bool:
    """Whether an array holds strings: fixed-width ones of numpy, or objects that a table gave."""
    return array.dtype.kind in "UO"


def digest(name: str, array: NDArray[Any]) -> str:
    """SHA-256 of name, dtype, shape and values, in hexadecimal."""
    if is_text(array):
        return hashlib.sha256(repr([name, *array.tolist()]).encode()).hexdigest()
    found = hashlib.sha256(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
