"""`calibrant train --devices`: the processes that train together on one machine.

The first starts the others before it imports torch, so that all import at the same time. It holds
a pipe to the standard input of each other: through it they learn where to meet, and its end tells
them that the first process has ended, in whatever way.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from calibrant.child_processes import command, environment

# Seconds for the first process to report an error itself before it is ended for that of another.
GRACE = 10.0


class First:
    """The process that the user started: it writes all files, so the others can be killed.

    Args:
        arguments: of the command line; each other process gets its `--rank` in addition.
        world_size: how many processes train together, this one included.
    """

    rank = 0

    def __init__(self, arguments: Sequence[str], world_size: int) -> None:
        self.world_size = world_size
        self._left = threading.Event()
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._children = [self._started(arguments, rank) for rank in range(1, world_size)]

    def _started(self, arguments: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
        # A file, because a pipe would fill up if nobody read it.
        log = tempfile.TemporaryFile()  # noqa: SIM115
        child = subprocess.Popen(  # noqa: S603
            command("calibrant.cli", [*arguments, f"--rank={rank}"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment(),
        )
        threading.Thread(target=self._watch, args=(child, rank, log), daemon=True).start()
        return child

    def _watch(self, child: subprocess.Popen[bytes], rank: int, log: IO[bytes]) -> None:
        """Report the error of a process; end this one if it waits for it in vain."""
        code = child.wait()
        if code == 0 or self._left.is_set():
            return
        line = f"process {rank} of {self.world_size} {_ending(code, log)}"
        self._lost.put(line)
        # Often all processes meet the same error, and this one is about to report it.
        if not self._left.wait(GRACE):
            self._end(2, line)

    def _obey(self, arrived: int) -> None:
        """End at the second SIGINT or SIGTERM if the main thread waits for another process.

        Python's own handlers run in the main thread, which sees no signal while it waits.
        """
        seen = 0
        while number := os.read(arrived, 1):
            seen += number[0] in (signal.SIGINT, signal.SIGTERM)
            if seen == 2 and not self._left.wait(GRACE):
                self._end(
                    128 + number[0], "stopped by a second signal; run the same command to resume"
                )
        os.close(arrived)

    def _end(self, code: int, line: str) -> None:
        print(f"calibrant: {line}", file=sys.stderr, flush=True)
        self._kill_others()
        os._exit(code)

    def _kill_others(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def __enter__(self) -> "First":
        arrived, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        threading.Thread(target=self._obey, args=(arrived,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wakeup)
        self._kill_others()

    def meet(self, port: int) -> int:
        """Tell the others the port of this process."""
        for child in self._children:
            if child.poll() is None and child.stdin is not None:
                child.stdin.write(b"%d\n" % port)
                child.stdin.flush()
        return port

    def lost(self) -> str | None:
        """What happened to another process that ended with an error; None if none did."""
        try:
            # Its connections may close a moment before it is dead.
            return self._lost.get(timeout=GRACE / 2)
        except queue.Empty:
            return None


class Other:
    """A process that another one started and that ends with it."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._port: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        # Not through sys.stdin, whose lock Python needs when it ends.
        if port := os.read(0, 16):
            self._port.put(int(port))
            os.read(0, 1)
        os._exit(1)

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to do: what it computed is in the first process."""

    def meet(self, port: int) -> int:
        """Wait for the port of the first process, as long as that lives."""
        return self._port.get()

    def lost(self) -> None:
        """Only the first process knows."""


def _ending(code: int, log: IO[bytes]) -> str:
    """How a process ended, and the last line it wrote."""
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        return f"{how}; run the same command to resume"
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    lines = log.read().decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"ended with exit code {code}: {said.removeprefix('calibrant: ')}"
