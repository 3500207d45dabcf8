"""Refusals that every file format shares, worded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Below this many bytes any ratio is harmless: the array fits in memory anyway.
SMALL = 64 * 2**20


@dataclass(frozen=True)
class Limits:
    """The most memory that a file may ask for: in bytes, and in bytes per byte stored."""

    max_bytes: int
    max_expansion: float


def one_line(text: object, limit: int = 200) -> str:
    """Text from a file or a library, safe to print: one line, no control characters, not long."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def listed(names: Sequence[str], limit: int = 20) -> str:
    """The first names of a list, each quoted, and how many more there are."""
    shown = ", ".join(repr(one_line(name, 60)) for name in names[:limit])
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return f"[{shown}{more}]"


def human(size: float) -> str:
    """Bytes as a person says them.

    >>> human(1536), human(64 * 2**30)
    ('1.5 kB', '64.0 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def check_file(path: Path) -> None:
    """Refuse what is no regular file: reading a pipe or a device could wait or go on for ever."""
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a device, a pipe or a socket"
        raise OSError(f"{path} is {kind}, not a file")


def check_size(path: Path, what: str, declared: int, stored: int, limits: Limits) -> None:
    """Refuse data that would fill the memory, before any of it is read.

    Args:
        path: the file, for the message.
        what: the part of the file that is about to be read, such as `member logits`.
        declared: bytes it takes in memory, as the file claims.
        stored: bytes that the file really holds for it.
        limits: what the caller allows.
    """
    if declared > limits.max_bytes:
        raise ValueError(
            f"{path}: {what} declares {human(declared)}, more than {human(limits.max_bytes)}; "
            "pass max_bytes=... if you trust it"
        )
    if declared > SMALL and declared > limits.max_expansion * stored:
        ratio = f"x{declared / stored:.0f}" if stored > 0 else "no bytes"
        raise ValueError(
            f"{path}: {what} declares {human(declared)}, {human(stored)} stored "
            f"({ratio} > x{limits.max_expansion:g}); pass max_expansion=... if you trust it"
        )


def check_wanted(path: Path, wanted: Sequence[str], held: Sequence[str]) -> None:
    """Refuse a file that lacks a wanted name, and list what it holds."""
    for name in wanted:
        if name not in held:
            raise ValueError(f"{path} has no {name!r}; it holds {listed(held)}")


def check_dtype(where: str, dtype: np.dtype[Any]) -> None:
    """Refuse all but plain numbers and truth values."""
    if dtype.hasobject:
        raise ValueError(
            f"{where}: object arrays are refused (loading one can run code); "
            "save it again as a numeric array"
        )
    # A long double has a layout of its own on every platform.
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(
            f"{where}: dtype {one_line(dtype, 60)} is not supported; "
            "expected float, integer or bool of at most 64 bits"
        )


def check_truth(where: str, values: NDArray[Any]) -> None:
    """Refuse truth values that are neither 0 nor 1: numpy computes nonsense with them."""
    if values.dtype.kind == "b" and values.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{where}: bool array holds bytes other than 0 and 1; file is damaged")
