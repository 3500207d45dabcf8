"""Write a file that is seen whole or not at all."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from calibrant.files.faults import fault

# What drafts are called, and nothing of a user's: random letters and the writer's process.
DRAFT = re.compile(r"\.[0-9a-f]{16}\.tmp\.[0-9]+")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a nameless draft that becomes `path` once its bytes are on the disk.

    After a failure or a kill, `path` is as it was before; after a failure the draft is gone too.
    """
    check_target(path)
    # The same folder, since a rename is atomic only within one filesystem.
    draft = path.parent / f".{secrets.token_hex(8)}.tmp.{os.getpid()}"
    fault(path, "before")
    try:
        with open(draft, "xb") as handle:
            yield handle
            fault(path, "inside", handle)
            handle.flush()
            os.fsync(handle.fileno())
        fault(path, "drafted")
        os.replace(draft, path)
        _sync_folder(path.parent)
        fault(path, "after")
    except OSError as error:
        if error.errno is None:
            raise
        # The user knows `path`, not the draft that the system complains about.
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    finally:
        # On a read-only disk even this fails, and would hide why.
        with suppress(OSError):
            draft.unlink()


def check_target(path: Path) -> None:
    """Refuse what `replacing` could not write, before the work that it is to hold is done."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: no folder {path.parent}; create it first")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; give a file name")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is not a regular file")


def sweep(folder: Path) -> None:
    """Remove the drafts that killed writers left behind; only for who owns the whole folder."""
    for draft in folder.glob(".*.tmp.*"):
        if DRAFT.fullmatch(draft.name):
            draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Put the rename itself on the disk, where the system can (not on Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
