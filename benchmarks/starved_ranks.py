"""Whether `calibrant train --devices 2` always ends, also when gloo gets hardly any processor time.

python -m benchmarks.starved_ranks --runs 100

Each run resumes one whose last step is done: the processes start, connect, predict and end.
As soon as the threads that do gloo's work are there, they may only use idle time, and one busy
process for each core leaves none: so they are late wherever they can be late. Linux only.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "calibrant.cli", "train", "--dataset", "blobs", "--model", "mlp"]
COMMAND += ["--data-set", "limit=300", "--epochs", "1", "--lr", "0.05", "--devices", "2"]
THREADS = "pt_gloo_runloop"


class Hogs:
    """A busy process for each core; asleep until it is needed."""

    def __init__(self) -> None:
        busy = [sys.executable, "-S", "-c", "while True: pass"]
        self.processes = [
            subprocess.Popen(busy)  # noqa: S603
            for _ in os.sched_getaffinity(0)
        ]
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for each in self.processes:
            each.send_signal(number)

    def __enter__(self) -> "Hogs":
        return self

    def __exit__(self, *error: object) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from family(int(child))


def starve(pid: int) -> int:
    """Leave idle time only to gloo's threads of a process and its children; how many there are."""
    found = 0
    for each in family(pid):
        for task in Path(f"/proc/{each}/task").iterdir():
            if (task / "comm").read_text().strip() == THREADS:
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
                found += 1
    return found


@contextmanager
def starving(pid: int, hogs: Hogs) -> Iterator[None]:
    """Starve gloo's threads of a process from when they appear to the end of this."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            try:
                if starve(pid):
                    hogs.signal(signal.SIGCONT)
            except (FileNotFoundError, ProcessLookupError):
                # Threads and processes end at any time.
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        hogs.signal(signal.SIGSTOP)


def seconds_of(command: list[str], hogs: Hogs, limit: float) -> float | None:
    """How long a starved command takes; None if it does not end, and is killed."""
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.DEVNULL, start_new_session=True
    )
    with starving(process.pid, hogs):
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return time.monotonic() - began


def measured(runs: int, limit: float) -> list[float | None]:
    """Seconds of each run, None for one that hangs."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = [*COMMAND, "--output", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        hogs = stack.enter_context(Hogs())
        found = []
        for _ in range(runs):
            Path(folder, "run", "result.json").unlink(missing_ok=True)
            found.append(seconds_of(command, hogs, limit))
            print("did not end" if found[-1] is None else f"{found[-1]:.1f} s", flush=True)
        return found


def main() -> None:
    """Print how many runs did not end, and how long the others took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of a run that hangs")
    asked = parser.parse_args()
    found = measured(asked.runs, asked.limit)
    ended = [each for each in found if each is not None]
    print(f"{found.count(None)} of {len(found)} runs did not end")
    if ended:
        print(f"the others: median {statistics.median(ended):.1f} s, longest {max(ended):.1f} s")


if __name__ == "__main__":
    main()
