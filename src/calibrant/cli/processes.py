"""`calibrant train --devices`: the processes that train together on one machine.

The main process starts the others before it imports torch, so that all import at the same time.
It holds a pipe to the standard input of each: through it they get the port to connect to, and its
end tells them that the main process has ended, in whatever way. An error comes back as JSON through
their standard output.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from calibrant.child_processes import command, environment
from calibrant.cli import one_line

# Seconds for the main process to report an error itself before it is ended for that of another.
GRACE = 10.0
RESUME = "re-run the same command to resume"


class MainProcess:
    """The process that the user started: it writes all files, so the others can be killed.

    Args:
        arguments: arguments of the command line; each child gets its `--rank` in addition.
        world_size: number of processes that train together, this one included.
    """

    rank = 0

    def __init__(self, arguments: Sequence[str], world_size: int) -> None:
        self.world_size = world_size
        self._left = threading.Event()
        self._failed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._children = [self._start(arguments, rank) for rank in range(1, world_size)]

    def _start(self, arguments: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(  # noqa: S603
            command("calibrant.cli", [*arguments, f"--rank={rank}"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        threading.Thread(target=self._watch, args=(child, rank), daemon=True).start()
        return child

    def _watch(self, child: subprocess.Popen[bytes], rank: int) -> None:
        """Report the error of a child; end this process if it would wait for it forever."""
        answer = child.stdout.read() if child.stdout else b""
        code = child.wait()
        if code == 0 or self._left.is_set():
            return
        line = f"process {rank} of {self.world_size} {_ending(code, answer)}"
        self._failed.put(line)
        # Often all processes meet the same error, and this one is about to report it.
        if not self._left.wait(GRACE):
            self._end(2, line)

    def _exit_on_second_signal(self, arrived: int) -> None:
        """End at the second SIGINT or SIGTERM if the main thread waits for another process.

        Python's own handlers run in the main thread, which sees no signal while it waits.
        """
        seen = 0
        while number := os.read(arrived, 1):
            seen += number[0] in (signal.SIGINT, signal.SIGTERM)
            if seen == 2 and not self._left.wait(GRACE):
                self._end(128 + number[0], f"stopped by a second signal; {RESUME}")
        os.close(arrived)

    def _end(self, code: int, line: str) -> None:
        print(f"calibrant: {line}", file=sys.stderr, flush=True)
        self._kill_children()
        os._exit(code)

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def __enter__(self) -> "MainProcess":
        arrived, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        threading.Thread(target=self._exit_on_second_signal, args=(arrived,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wakeup)
        self._kill_children()

    def exchange_port(self, port: int) -> int:
        """Send the port of this process to the children."""
        for child in self._children:
            if child.poll() is None and child.stdin is not None:
                child.stdin.write(b"%d\n" % port)
                child.stdin.flush()
        return port

    def failed_process(self) -> str | None:
        """Which child ended with an error, and with which; None if none did."""
        try:
            # Its connections may close a moment before it is dead.
            return self._failed.get(timeout=GRACE / 2)
        except queue.Empty:
            return None


class ChildProcess:
    """A process that the main process started, and that ends with it."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._port: queue.SimpleQueue[int] = queue.SimpleQueue()
        # What models print must not mix with an error.
        self._answers = os.dup(1)
        os.dup2(2, 1)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        # Not through sys.stdin, whose lock Python needs when it ends.
        if port := os.read(0, 16):
            self._port.put(int(port))
            os.read(0, 1)
        os._exit(1)

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Send an error to the main process, which has everything else."""
        if error is not None:
            # An exit code hides the error that it stands for.
            message = one_line(error.__cause__ or error)
            os.write(self._answers, json.dumps({"error": message}).encode())

    def exchange_port(self, port: int) -> int:
        """Wait for the port of the main process, as long as that lives."""
        return self._port.get()

    def failed_process(self) -> None:
        """Only the main process knows."""


def _ending(code: int, answer: bytes) -> str:
    """How a process ended, with the error that it sent."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}; {RESUME}"
    how = f"ended with exit code {code}"
    return f"{how}: {json.loads(answer)['error']}" if answer else how
