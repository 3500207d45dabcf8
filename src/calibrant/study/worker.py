"""A worker: takes cell after cell of a study, and tells the store how each ended."""

import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.study.cell import run_cell
from calibrant.study.folder import read_study
from calibrant.study.grid import Cell, Study
from calibrant.study.store import Claim, Store
from calibrant.training import DiskFullError, DivergedError, InterruptedTrainingError
from calibrant.training.checkpoint import write
from calibrant.training.loop import Loop

# Seconds for which a sign of life counts, and between two looks for a cell that is free again.
LEASE, PAUSE = 60.0, 0.5
ERROR = "error.txt"
# Of a cell that was taken out of the study; put in again, it is tried again.
GONE = "the study no longer has this cell"


class LostError(Exception):
    """Another worker has taken the cell over, because this one gave no sign of life in time."""


def work(folder: str | Path, *, owner: str, lease: float = LEASE, with_parent: bool = False) -> int:
    """Run cells until none is left; returns how many.

    A cell that fails is recorded and the next one is taken. While others still run cells, this
    one waits: theirs may become free.

    Args:
        folder: of the study.
        owner: name of this worker, different from all others.
        lease: seconds without a sign of life after which others may take a cell over.
        with_parent: end as soon as the process that started this one has ended.

    Raises:
        InterruptedTrainingError: SIGTERM or SIGINT; the cell is saved and given back.
        DiskFullError: no room; the cell is given back.
    """
    where, done = Path(folder), 0
    owner = named(owner)
    study = read_study(where)
    cells = study.by_id
    parent = os.getppid() if with_parent else None
    with Store.open(where, create=False) as store:
        while not _left_alone(parent):
            claim = next_claim(store, cells, owner=owner, lease=lease)
            if claim is not None:
                _run(store, claim, cells[claim.id], study, lease, parent)
                done += 1
            elif store.counts()["running"] == 0:
                break
            else:
                time.sleep(PAUSE)
    return done


def named(owner: str) -> str:
    """An owner with its machine and process, by which others see whether it still lives."""
    return f"{owner}@{platform.node()}:{os.getpid()}"


def next_claim(store: Store, cells: Collection[str], *, owner: str, lease: float) -> Claim | None:
    """Claim a cell of these ids; others that the store holds are ended."""
    while (claim := store.claim(owner, lease=lease)) is not None and claim.id not in cells:
        store.finish(claim, "failed", reason=GONE)
    return claim


def _run(
    store: Store, claim: Claim, cell: Cell, study: Study, lease: float, parent: int | None
) -> None:
    """Run a claimed cell and say how it ended."""
    start = time.monotonic()
    claim.folder.mkdir(parents=True, exist_ok=True)
    try:
        with _alive(store, claim, lease, parent) as watch:
            status, reason = end_of(
                lambda: run_cell(cell, study, claim.folder, on_step=watch), claim.folder
            )
    except LostError:
        return
    except (InterruptedTrainingError, DiskFullError):
        store.release(claim)
        raise
    store.finish(claim, status, reason=reason, seconds=time.monotonic() - start)


def end_of(run: Callable[[], object], folder: Path) -> tuple[str, str]:
    """Run a cell; returns its status and, if it did not succeed, why.

    Raises:
        LostError: the cell is no longer wanted here.
        InterruptedTrainingError: a signal came.
        DiskFullError: no room.
    """
    try:
        run()
    except (LostError, InterruptedTrainingError, DiskFullError):
        raise
    except DivergedError as error:
        status, reason = "diverged", str(error)
    except Exception as error:
        # Whatever is wrong with one cell, the others go on; the report shows it.
        status, reason = "failed", f"{type(error).__name__}: {error}"
        write(folder / ERROR, traceback.format_exc().encode())
    else:
        status, reason = "done", ""
    return status, " ".join(reason.split())[:500]


@contextmanager
def _alive(
    store: Store, claim: Claim, lease: float, parent: int | None
) -> Iterator[Callable[[Loop], None]]:
    """Renew the lease from a thread; yield what ends the training once the cell is lost."""
    over, lost = threading.Event(), threading.Event()

    def renew() -> None:
        # A connection belongs to the thread that opened it.
        with Store.open(store.folder, create=False) as own:
            while not over.wait(min(lease / 4, 2.0)):
                if _left_alone(parent):
                    # As if it had been asked to end: the step is saved and the cell given back.
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                if not own.heartbeat(claim, lease=lease):
                    lost.set()
                    return

    def watch(loop: Loop) -> None:
        if lost.is_set():
            raise LostError

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def _left_alone(parent: int | None) -> bool:
    """Whether the process that started this one is gone."""
    return parent is not None and os.getppid() != parent
