"""One BLAS thread while chunks have threads of their own, however many fits run at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_lock = threading.Lock()
# One entry, the same limit, for each fit that runs.
_fits: list["BlasLimit"] = []


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep matrix products to the thread that asks for them, since chunks have threads already.

    The threads of BLAS wait for each other in a loop: on a machine that has other things to do,
    that takes many times as long as the work. Their number belongs to the process: the first fit
    lowers it, and the last of those that run at the same time restores it. A number that the
    program set itself with threadpoolctl stays as it is: fits are then slower, nothing else.
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
    """The limit, set and restored by a thread of its own.

    threadpoolctl lets only the thread that changed the number change it again, and the fit that
    came first need not be the last.
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
        """Return once the number is what it was."""
        self._over.set()
        self._thread.join()
