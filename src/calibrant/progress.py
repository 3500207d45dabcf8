"""Progress of long work in Python: a line in a terminal or notebook after two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds before the line appears, and between two updates.
PATIENCE, PAUSE = 2.0, 0.2

Step = Callable[[], None]


def is_interactive() -> bool:
    """Whether somebody watches stderr: a terminal or a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


@contextmanager
def steps(given: Step | None, total: int, what: str) -> Iterator[Step]:
    """Yield a function to call after each of `total` steps.

    Args:
        given: the function of a caller who shows progress itself; None shows a line, but only to
            somebody who watches.
        total: number of steps.
        what: name of the work.
    """
    if given is not None:
        yield given
    elif not is_interactive():
        yield lambda: None
    else:
        line = _Line(total, what)
        try:
            yield line.step
        finally:
            line.clear()


class _Line:
    """A line on stderr that is rewritten: percentage and time left."""

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done, self.width = total, what, 0, 0
        self.start = time.monotonic()
        self.next = self.start + PATIENCE

    def step(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + PAUSE
        left = (now - self.start) / self.done * max(0, self.total - self.done)
        share = 100 * min(1.0, self.done / self.total)
        self._write(f"{self.what}: {share:.0f} %, {left:.0f} s left")

    def clear(self) -> None:
        if self.width:
            self._write("")
            sys.stderr.write("\r")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(text)
