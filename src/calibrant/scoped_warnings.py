"""Warnings that can be silenced in one thread.

`warnings.catch_warnings` changes the filters of the process, which is not thread-safe.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_silenced: ContextVar[bool] = ContextVar("calibrant_silenced", default=False)


def warn(message: str, *, stacklevel: int = 1) -> None:
    """Issue a `UserWarning`, unless warnings are silenced; `stacklevel` as in `warnings`."""
    if not _silenced.get():
        warnings.warn(message, stacklevel=stacklevel + 1)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the warnings of calibrant in this thread."""
    before = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(before)
