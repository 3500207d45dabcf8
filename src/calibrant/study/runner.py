"""Run a study: on one machine, by workers that are replaced when they die, or by another crew."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from calibrant.study.folder import collect, states, write_study
from calibrant.study.grid import Study
from calibrant.study.rows import Row
from calibrant.study.store import NAME, CellState, Claim, Store
from calibrant.study.worker import GONE
from calibrant.training.checkpoint import DiskFullError
from calibrant.training.folder import DIVERGED, RESULT, read_result
from calibrant.training.interrupts import InterruptedTrainingError, Interrupts

# Seconds between two looks at the workers, and that they have to end after a signal.
PAUSE, PATIENCE = 0.2, 7.0
LOG = "workers.log"
# A worker's name, where it runs, and its process.
OWNER = re.compile(r".*@(?P<host>.*):(?P<process>\d+)")
# Exit code of a worker that found the disk full.
FULL = 5


@dataclass(frozen=True)
class Snapshot:
    """A study under way: its cells in order, and how long it has run."""

    cells: tuple[CellState, ...]
    seconds: float


class Hands(Protocol):
    """Who runs the cells of a study."""

    def busy(self, study: Study) -> bool:
        """Look after the work, without waiting for it; whether there is anything left."""

    def dismiss(self) -> None:
        """End all work, soon; cells under way are given back."""


def run(
    study: Study,
    folder: str | Path,
    *,
    workers: int = 1,
    allow_code: Sequence[str] = (),
    retry: bool = False,
    watch: Callable[[Snapshot], None] = lambda snapshot: None,
) -> list[Row]:
    """Run every cell that is not finished, and collect the rows of all that are.

    The same call again goes on: finished cells are not run again, unfinished ones continue from
    their checkpoints, and rows are made again where calibrators or metrics have changed.

    Args:
        study: from `read`.
        folder: of the study.
        workers: processes that train side by side; they share the cores.
        allow_code: factories of models that the study may run.
        retry: run cells that failed or diverged once more.
        watch: called with the state of things a few times a second.

    Raises:
        InterruptedTrainingError: SIGTERM or SIGINT; what was done is saved.
        DiskFullError: there is no room; the same call goes on once there is.
    """
    return run_by(
        lambda store: Crew(store.folder, store, workers),
        study,
        folder,
        allow_code=allow_code,
        retry=retry,
        watch=watch,
    )


def run_by(
    hands_of: Callable[[Store], Hands],
    study: Study,
    folder: str | Path,
    *,
    allow_code: Sequence[str],
    retry: bool,
    watch: Callable[[Snapshot], None],
) -> list[Row]:
    """Do what `run` does by hands that are made once the store is open."""
    where = Path(folder)
    _check_ours(where)
    start = looked = time.monotonic()
    with Store.open(where) as store:
        write_study(where, study, allow_code=tuple(allow_code))
        store.add([cell.config() for cell in study.cells()])
        give_back(store)
        _try_again(store, states(study, store), all_of_them=retry)
        _mend(store, states(study, store))
        with Interrupts() as interrupts:
            hands = hands_of(store)
            try:
                while hands.busy(study):
                    watch(Snapshot(tuple(states(study, store)), time.monotonic() - start))
                    if interrupts.number is not None:
                        said = f"finished steps are saved in {where}, the same command goes on"
                        raise InterruptedTrainingError(interrupts.number, said)
                    time.sleep(PAUSE)
                    if time.monotonic() - looked > 10 * PAUSE:
                        # Workers of an earlier run that was killed end only a bit later.
                        give_back(store)
                        looked = time.monotonic()
            except InterruptedTrainingError:
                # What is finished can be reported.
                collect(study, store)
                raise
            finally:
                hands.dismiss()
                give_back(store)
        watch(Snapshot(tuple(states(study, store)), time.monotonic() - start))
        return collect(study, store)


def _check_ours(folder: Path) -> None:
    """Refuse to put a study among the files of something else."""
    if folder.is_dir() and not (folder / NAME).exists():
        ours = ("store.", "cells", "study.json", "rows.", "report.html", LOG, ".")
        others = [path.name for path in folder.iterdir() if not path.name.startswith(ours)]
        if others:
            raise ValueError(
                f"{folder} is no study and holds other files, such as {min(others)}: choose a new "
                "or an empty folder"
            )


def give_back(store: Store) -> None:
    """Free the cells of workers of this machine that are dead; it was not the cells' fault."""
    for state in store.cells():
        owner = OWNER.fullmatch(state.owner)
        if state.status != "running" or owner is None or owner["host"] != platform.node():
            continue
        if not _lives(int(owner["process"])):
            folder = store.folder_of(state.id)
            store.release(Claim(state.id, state.config, state.attempt, state.owner, folder))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _try_again(store: Store, cells: Sequence[CellState], *, all_of_them: bool) -> None:
    """Put failed cells back: those that were out of the study, or all that did not succeed."""
    ended = [state for state in cells if state.status in ("failed", "diverged")]
    chosen = [state.id for state in ended if all_of_them or state.reason == GONE]
    for each in chosen:
        # Otherwise the training would only say again that it had diverged.
        (store.folder_of(each) / DIVERGED).unlink(missing_ok=True)
    if chosen:
        store.retry(chosen)


def _mend(store: Store, cells: Sequence[CellState]) -> None:
    """Put finished cells back whose files have changed or gone; their checkpoints may be there."""
    damaged = []
    for state in cells:
        folder = store.folder_of(state.id)
        try:
            whole = state.status != "done" or read_result(folder) is not None
        except ValueError:
            whole = False
            (folder / RESULT).unlink()
        if not whole:
            damaged.append(state.id)
    if damaged:
        store.retry(damaged)
        first = store.folder_of(damaged[0])
        warnings.warn(
            f"files of {len(damaged)} finished cells have changed or gone, the first is {first}: "
            "they are run again",
            stacklevel=3,
        )


class Crew:
    """The worker processes of a study on this machine."""

    def __init__(self, folder: Path, store: Store, size: int) -> None:
        self.folder, self.store, self.size = folder, store, size
        self.threads = max(1, torch.get_num_threads() // size)
        self.started = 0
        self.log = folder / LOG
        self.logged = self.log.stat().st_size if self.log.exists() else 0
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def busy(self, study: Study) -> bool:
        """Replace workers that died; whether there is anything left to wait for."""
        for name, process in list(self.members.items()):
            code = process.poll()
            if code is None:
                continue
            del self.members[name]
            if code == FULL:
                raise self._full()
            if code:
                self._record(name, code)
        open_cells = [s for s in states(study, self.store) if s.status in ("pending", "running")]
        waiting = sum(state.status == "pending" for state in open_cells)
        for _ in range(min(self.size - len(self.members), waiting)):
            self._hire()
        return bool(open_cells or self.members)

    def dismiss(self) -> None:
        """End all workers; each saves the step it is at."""
        for process in self.members.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        for process in self.members.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _hire(self) -> None:
        self.started += 1
        name = f"{os.getpid()}-{self.started}"
        command = [sys.executable, "-m", "calibrant.cli", "worker", str(self.folder)]
        command += ["--owner", name, "--threads", str(self.threads), "--with-parent"]
        # Their prints would tear the view apart; what matters is in the store.
        with self.log.open("ab") as log:
            self.members[name] = subprocess.Popen(  # noqa: S603, our own program
                command, stdout=log, stderr=log, start_new_session=True
            )

    def _full(self) -> DiskFullError:
        """What the worker said that found no room, if there was room for that in the log."""
        with self.log.open("rb") as log:
            log.seek(self.logged)
            lines = log.read().decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("calibrant: cannot write ")]
        free = shutil.disk_usage(self.folder).free
        unknown = f"cannot write to {self.folder}: {free:,} bytes free; make room and run it again"
        return DiskFullError(said[-1].removeprefix("calibrant: ") if said else unknown)

    def _record(self, name: str, code: int) -> None:
        """A worker died: its cell's attempt is over, and the reason is kept."""
        why = f"the worker ended with code {code}"
        if code < 0:
            hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
            why = f"the worker was killed by {signal.Signals(-code).name}{hint}"
        for state in self.store.cells():
            if state.status == "running" and state.owner.startswith(f"{name}@"):
                self.store.crash((state.id, state.attempt), why)
