"""SIGTERM and SIGINT: the step is finished and saved before the process ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class InterruptedTrainingError(Exception):
    """A training was asked to end; what it has done is saved.

    Attributes:
        number: number of the signal; programs that were ended so exit with 128 + number.
    """

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved}")
        self.number = number


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals inside; Python lets only the main thread do so."""
    main = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, handler) for each in SIGNALS if main}
    try:
        yield
    finally:
        for each, own in before.items():
            signal.signal(each, own)


class Interrupts(ExitStack):
    """Remember a signal instead of obeying at once; a second one is obeyed, and others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None
        self._patient = False

    def __enter__(self) -> "Interrupts":
        self.enter_context(_handled(self._remember))
        return self

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

    with _handled(obey):
        yield
