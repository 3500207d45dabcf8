"""Warnings that a caller can silence in its own thread alone.

`warnings.catch_warnings` changes the filters of the whole process: of two threads inside it, the
one that leaves last restores what the other had set. A context variable belongs to one thread.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_silenced: ContextVar[bool] = ContextVar("calibrant_silenced", default=False)


def warn(message: str, *, stacklevel: int = 1) -> None:
    """Issue a `UserWarning`, unless the caller asked for none; levels count as in `warnings`."""
    if not _silenced.get():
        warnings.warn(message, stacklevel=stacklevel + 1)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Drop the warnings of calibrant in this thread; filters of the process stay as they are."""
    before = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(before)
