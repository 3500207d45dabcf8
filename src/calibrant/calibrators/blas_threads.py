"""Limit BLAS to one thread while chunks run in threads, also with several concurrent fits."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

_lock = threading.Lock()
# One entry for each running fit, all the same limit and the thread that set it: threadpoolctl
# restores the number only there, and the first of several fits need not be the last to end.
_fits: list[tuple[Any, ThreadPoolExecutor]] = []


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Run matrix products in the calling thread, since chunks have threads already.

    BLAS threads busy-wait for each other, which on a loaded machine takes much longer than the
    work. Their number belongs to the process: the first fit lowers it, the last concurrent one
    restores it. A number set with threadpoolctl by the program itself is respected.
    """
    with _lock:
        _fits.append(_fits[0] if _fits else _lower())
    try:
        yield
    finally:
        with _lock:
            limit, thread = _fits.pop()
            if not _fits:
                thread.submit(limit.restore_original_limits).result()
                thread.shutdown()


def _lower() -> tuple[Any, ThreadPoolExecutor]:
    thread = ThreadPoolExecutor(1)
    return thread.submit(threadpool_limits, limits=1, user_api="blas").result(), thread
