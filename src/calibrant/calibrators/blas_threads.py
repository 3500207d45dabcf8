"""Limit BLAS to one thread while chunks run in threads, also with several concurrent fits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_lock = threading.Lock()
# One entry for each running fit, all the same limit.
_fits: list["BlasLimit"] = []


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Run matrix products in the calling thread, since chunks have threads already.

    BLAS threads busy-wait for each other, which on a loaded machine takes much longer than the
    work. Their number belongs to the process: the first fit lowers it, the last concurrent one
    restores it. A number set with threadpoolctl by the program itself is respected.
    """
    with _lock:
        _fits.append(_fits[0] if _fits else BlasLimit())
    try:
        yield
    finally:
        with _lock:
            limit = _fits.pop()
            if not _fits:
                limit.restore()


class BlasLimit:
    """The limit, set and restored in a thread of its own.

    threadpoolctl restores the number only in the thread that set it, and the first of several
    concurrent fits need not be the last to end.
    """

    def __init__(self) -> None:
        self._set, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        self._set.wait()

    def _hold(self) -> None:
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                self._set.set()
                self._over.wait()
        finally:
            self._set.set()

    def restore(self) -> None:
        """Restore the previous number of threads."""
        self._over.set()
        self._thread.join()
