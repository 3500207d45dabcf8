"""Atomic writes of files."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from calibrant.files.faults import fault

# Names of temporary files, unlike those of users: random digits and the process id.
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp\.[0-9]+")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` once its bytes are on the disk.

    After an error or a kill `path` is unchanged; after an error the temporary file is removed.
    """
    check_target(path)
    # The same folder, since a rename is atomic only within one filesystem.
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp.{os.getpid()}"
    fault(path, "before")
    try:
        with open(temporary, "xb") as handle:
            yield handle
            fault(path, "inside", handle)
            handle.flush()
            os.fsync(handle.fileno())
        fault(path, "drafted")
        os.replace(temporary, path)
        _sync_folder(path.parent)
        fault(path, "after")
    except OSError as error:
        if error.errno is None:
            raise
        # Name `path`, not the temporary file.
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    finally:
        # On a read-only disk this fails, too, and would hide the error.
        with suppress(OSError):
            temporary.unlink()


def check_target(path: Path) -> None:
    """Refuse a path that `replacing` could not write; call it before long computations."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: no folder {path.parent}; create it first")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; give a file name")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is not a regular file")


def sweep(folder: Path) -> None:
    """Remove temporary files of killed processes; only for the owner of the whole folder."""
    for temporary in folder.glob(".*.tmp.*"):
        if TEMPORARY.fullmatch(temporary.name):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Sync the rename itself, where the system supports it (not on Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
