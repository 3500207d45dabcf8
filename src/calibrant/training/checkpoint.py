"""Checkpoints: seen whole or not at all, and never used if a single bit of one has changed."""

import errno
import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError, UnpicklingError
from typing import Any

import torch

from calibrant.files.atomic import replacing
from calibrant.files.checks import check_file

# The first line of a file; its second is the SHA-256 of all that follows.
MAGIC = b"calibrant checkpoint 1\n"
KEPT = 2
# The system's words for no room: the disk, the quota, the limit on one file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(OSError):
    """There is no room for a file; what was on the disk before is still good.

    Attributes:
        path: path of the file.
        needed: its size in bytes.
        free: bytes that the disk has left.
        reason: what the system says.
        host: the machine, if it is another one.
    """

    def __init__(self, path: str, needed: int, free: int, reason: str, host: str = "") -> None:
        where = f"{host}: " if host else ""
        super().__init__(
            f"{where}cannot write {path}: {needed:,} bytes needed, {free:,} free ({reason}); make "
            "room and re-run the same command to resume"
        )
        self.path, self.needed, self.free = path, needed, free
        self.reason, self.host = reason, host

    def as_dict(self) -> dict[str, Any]:
        """The attributes, for another process: `DiskFullError(**record)` is the same error."""
        return dict(vars(self))


@contextmanager
def room_for(path: Path, needed: int) -> Iterator[None]:
    """Say with numbers that there is no room for a file, if there is none."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(path.parent).free
        raise DiskFullError(str(path), needed, free, os.strerror(error.errno)) from error


def write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with room_for(path, len(content)), replacing(path) as handle:
        handle.write(content)


def save(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write the state of a step, then remove all but the newest two."""
    path = folder / f"checkpoint-{step:09d}.pt"
    payload = encoded(state)
    write(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for old in [each for each in found(folder) if each != path][KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def set_aside(folder: Path, names: Iterable[str]) -> None:
    """Rename damaged checkpoints, so that they neither count as checkpoints nor are lost."""
    for name in names:
        (folder / name).replace(folder / f"damaged-{name}")


def check_plain(state: Mapping[str, Any], what: str) -> None:
    """Refuse a state that could be written but, as it carries code, never be read again."""
    try:
        torch.load(io.BytesIO(encoded(state)), weights_only=True)
    except (PickleError, AttributeError) as error:
        raise TypeError(f"{what} must be tensors and plain values, it holds others") from error


def found(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("checkpoint-*.pt"), reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint after its checksum has been compared."""
    check_file(path)
    data = path.read_bytes()
    head = len(MAGIC) + 65
    payload = data[head:]
    expected = MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    if data[:head] != expected:
        raise ValueError(f"{path} is damaged: its checksum does not match")
    try:
        state = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise ValueError(f"{path} holds more than tensors and plain values, or none") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds no state of a training run")
    return state


def latest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """State of the newest checkpoint that is whole, and the names of the damaged ones.

    Damaged ones are skipped with a warning; None if none is left, which means from the start.
    """
    damaged: list[str] = []
    for path in found(folder):
        try:
            return load(path), damaged
        except ValueError as error:
            damaged.append(path.name)
            warnings.warn(f"{error}; it is not used", stacklevel=2)
    if damaged:
        warnings.warn(f"no good checkpoint is left in {folder}: from the start", stacklevel=2)
    return None, damaged


def encoded(state: Mapping[str, Any]) -> bytes:
    """A state as bytes of `torch.save`."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()
