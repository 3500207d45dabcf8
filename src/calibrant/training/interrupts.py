"""SIGTERM and SIGINT: the step is finished and saved before the process ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class InterruptedTrainingError(Exception):
    """A training was asked to end; what it has done is saved.

    Attributes:
        number: of the signal; programs that were ended so exit with 128 + number.
    """

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved}")
        self.number = number


class Interrupts:
    """Remember a signal instead of obeying at once; a second one is obeyed, and others are not."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Python lets only the main thread have handlers.
        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                self._before[each] = signal.signal(each, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Let no signal break into this block: a file that is being written is finished."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        elif not self._patient:
            # One is enough: others would break into what it cleans up.
            self._patient = True
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def raising(saved: str) -> Iterator[None]:
    """Obey signals at once by an `InterruptedTrainingError`, where no step has to be finished.

    Args:
        saved: what the error says of the work so far.
    """

    def obey(number: int, frame: FrameType | None) -> None:
        raise InterruptedTrainingError(number, saved)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, obey) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
