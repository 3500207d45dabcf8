"""A worker: takes run after run of a study, and records how each ended.

`python -m calibrant.study.worker` is a worker that `calibrant study` started.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from calibrant.study.cell import run_cell
from calibrant.study.folder import read_study, running
from calibrant.study.grid import Cell, Study
from calibrant.study.place import check_place
from calibrant.study.runs import Claim, Runs
from calibrant.training import DiskFullError, DivergedError, InterruptedTrainingError
from calibrant.training.checkpoint import write
from calibrant.training.interrupts import raising
from calibrant.training.loop import Loop

# Seconds between two checks for a free run, and between two for the parent process.
PAUSE, LOOK = 0.5, 1.0
ERROR = "error.txt"


class CancelledError(Exception):
    """The attempt was cancelled."""


def work(
    folder: str | Path,
    *,
    owner: str,
    allow_code: Sequence[str] = (),
    log: Sequence[str] = (),
    with_parent: bool = False,
) -> list[str]:
    """Train runs until none is left; returns the status of each.

    A run that fails is recorded and the next one is taken. While others still train, this one
    waits: their runs may become free.

    Args:
        folder: folder of the study.
        owner: name of this worker, different from all others.
        allow_code: factories of models that the study may run; what its folder says does not count.
        log: where the metrics of each run go besides its folder, see `train`.
        with_parent: end as soon as the process that started this one has ended.

    Raises:
        InterruptedTrainingError: SIGTERM or SIGINT; the run is saved and released.
        DiskFullError: no room; the run is released.
    """
    where = Path(folder)
    done: list[str] = []
    check_place(where)
    read_study(where, allow_code=allow_code)
    parent = os.getppid() if with_parent else None
    with running(where), raising(f"finished steps are saved in {where}"), _parent_watched(parent):
        study = read_study(where, allow_code=allow_code)
        runs = Runs(where, study.by_id)
        while not _left_alone(parent):
            claim = runs.claim(owner)
            if claim is not None:
                done.append(run_claimed(claim, study.by_id[claim.id], study, log=log))
                continue
            counts = runs.counts()
            # Pending: somebody looked at its lock at the instant of the claim.
            if not counts["running"] and not counts["pending"]:
                break
            time.sleep(PAUSE)
    return done


def run_claimed(
    claim: Claim,
    cell: Cell,
    study: Study,
    *,
    log: Sequence[str] = (),
    on_step: Callable[[Loop], None] = lambda loop: None,
) -> str:
    """Train a claimed run and record its status; errors as of `outcome_of`, it is released."""
    start = time.monotonic()
    try:
        status, reason = outcome_of(
            lambda: run_cell(cell, study, claim.folder, locked=True, log=log, on_step=on_step),
            claim.folder,
        )
    except BaseException:
        # Where there is no room to say so, the lock still ends.
        with suppress(DiskFullError):
            claim.end("released")
        raise
    claim.end(status, reason=reason, seconds=time.monotonic() - start)
    return status


def outcome_of(train: Callable[[], object], folder: Path) -> tuple[str, str]:
    """Train; returns the status and, if it did not succeed, why.

    A cancelled attempt, a signal and a full disk are raised.
    """
    try:
        train()
    except (CancelledError, InterruptedTrainingError, DiskFullError):
        raise
    except DivergedError as error:
        status, reason = "diverged", str(error)
    except Exception as error:
        # After any error of one run the others continue; the report shows it.
        status, reason = "failed", f"{type(error).__name__}: {error}"
        write(folder / ERROR, traceback.format_exc().encode())
    else:
        status, reason = "done", ""
    return status, " ".join(reason.split())[:500]


@contextmanager
def _parent_watched(parent: int | None) -> Iterator[None]:
    """Act as if asked to stop once the parent has ended: the step is saved, the run released."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            if _left_alone(parent):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _left_alone(parent: int | None) -> bool:
    """Whether the process that started this one is gone."""
    return parent is not None and os.getppid() != parent


def main(job: str) -> int:
    """Work for the process that started this one, and tell it through stdout if the disk is full.

    `job` are the arguments of `work` and the number of threads, as JSON.
    """
    given = json.loads(job)
    # What models print belongs in the log: stdout is read only after the end, and could fill up.
    answers = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(given.pop("threads"))
    try:
        work(**given, with_parent=True)
    except InterruptedTrainingError as error:
        return 128 + error.number
    except DiskFullError as error:
        os.write(answers, json.dumps(error.as_dict()).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
