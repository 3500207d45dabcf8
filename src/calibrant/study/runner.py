"""Run a study: on one machine, by workers that are replaced when they die, or by a cluster."""

import json
import os
import secrets
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from calibrant.child_processes import command, environment
from calibrant.files.locks import open_regular
from calibrant.study.folder import STUDY, collect, open_runs, running
from calibrant.study.grid import Study
from calibrant.study.rows import Rows
from calibrant.study.runs import Runs, RunState
from calibrant.training.checkpoint import DiskFullError
from calibrant.training.folder import LOCK, read_result
from calibrant.training.interrupts import InterruptedTrainingError, Interrupts
from calibrant.training.loggers import prepare_loggers

# Seconds between two looks at the workers, and that they have to end after a signal.
PAUSE, PATIENCE = 0.2, 7.0
LOG = "workers.log"
# Workers in a row that die without a run, after which the study gives up.
USELESS = 5


@dataclass(frozen=True)
class Snapshot:
    """A study under way: its runs in order, and how long it has taken."""

    cells: tuple[RunState, ...]
    seconds: float


class Executor(Protocol):
    """Trains the runs of a study."""

    def poll(self) -> bool:
        """Look after the work, without waiting for it; whether there is anything left."""

    def shutdown(self) -> None:
        """End all work, soon; runs under way are released."""


def run(
    study: Study,
    folder: str | Path,
    *,
    workers: int = 1,
    allow_code: Sequence[str] = (),
    retry: bool = False,
    log: Sequence[str] = (),
    watch: Callable[[Snapshot], None] = lambda snapshot: None,
) -> Rows:
    """Train every run that is not finished, and collect the rows of all that are.

    The same call again resumes: finished runs are not trained again, unfinished ones continue from
    their checkpoints, and rows are made again where calibrators or metrics have changed.

    Args:
        study: from `read`.
        folder: folder of the study, on a local disk of this machine.
        workers: processes that train side by side; they share the cores.
        allow_code: factories of models that the study may run.
        retry: try runs that failed or diverged once more.
        log: where the metrics of each run go besides its folder, see `train`.
        watch: called with the state of things a few times a second.

    Raises:
        InterruptedTrainingError: SIGTERM or SIGINT; what was done is saved.
        DiskFullError: there is no room; the same call resumes once there is.
        ValueError: the folder holds another study, or runs one with other settings.
    """
    prepare_loggers(log)
    return run_by(
        lambda runs: LocalExecutor(runs, workers, allow_code, log), study, folder, retry, watch
    )


def run_by(
    executor_of: Callable[[Runs], Executor],
    study: Study,
    folder: str | Path,
    retry: bool,
    watch: Callable[[Snapshot], None],
) -> Rows:
    """Do what `run` does with an executor that is made once the folder is ready."""
    where = Path(folder)
    _check_ours(where)
    start = time.monotonic()
    runs = open_runs(study, where)
    with running(where, study) as alone, Interrupts() as interrupts:
        if alone:
            runs.interrupt()
        if retry:
            runs.retry(s.id for s in runs.states() if s.status in ("failed", "diverged"))
        _requeue_damaged(runs)
        executor = executor_of(runs)
        try:
            while executor.poll():
                looked = time.monotonic()
                watch(Snapshot(tuple(runs.states()), looked - start))
                if interrupts.number is not None:
                    said = f"finished steps are saved in {where}; re-run the same command to resume"
                    raise InterruptedTrainingError(interrupts.number, said)
                # To look at very many runs takes time that the workers need.
                time.sleep(max(PAUSE, 4 * (time.monotonic() - looked)))
        except InterruptedTrainingError:
            # What is finished can be reported.
            collect(study, runs)
            raise
        finally:
            # A second signal must not leave workers behind.
            with interrupts.held_off():
                executor.shutdown()
        watch(Snapshot(tuple(runs.states()), time.monotonic() - start))
        return collect(study, runs)


def _check_ours(folder: Path) -> None:
    """Refuse to put a study among the files of something else."""
    if folder.is_dir() and not (folder / STUDY).exists():
        ours = ("cells", LOCK, "rows.", "report.html", LOG, ".")
        others = [path.name for path in folder.iterdir() if not path.name.startswith(ours)]
        if others:
            raise ValueError(
                f"{folder} is no study and holds other files, such as {min(others)}: choose a new "
                "or an empty folder"
            )


def _requeue_damaged(runs: Runs) -> None:
    """Requeue finished runs whose files have changed or gone; checkpoints may still exist."""
    damaged = []
    for state in runs.states():
        ended = state.attempts[-1:] and state.attempts[-1].outcome == "done"
        if state.status != "done" and not (state.status == "pending" and ended):
            continue
        try:
            whole = read_result(runs.folder_of(state.id)) is not None
        except ValueError:
            whole = False
        if not whole:
            damaged.append(state.id)
    damaged = runs.retry(damaged)
    if damaged:
        warnings.warn(
            f"files of {len(damaged)} finished runs have changed or gone, the first is "
            f"{runs.folder_of(damaged[0])}: they are trained again",
            stacklevel=3,
        )


def threads_of(workers: int) -> int:
    """Threads of each of several workers, which share the cores."""
    return max(1, torch.get_num_threads() // workers)


class LocalExecutor:
    """Worker processes on this machine, which are replaced when they die."""

    def __init__(
        self, runs: Runs, size: int, allow_code: Sequence[str] = (), log: Sequence[str] = ()
    ) -> None:
        self.runs, self.size = runs, size
        self.allow_code, self.logs = tuple(allow_code), tuple(log)
        self.threads = threads_of(size)
        self.log = runs.folder / LOG
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.useless = 0

    def poll(self) -> bool:
        """Replace workers that died; whether there is anything left to wait for."""
        for name, process in list(self.workers.items()):
            code = process.poll()
            if code is None:
                continue
            del self.workers[name]
            if full := process.communicate()[0]:
                raise DiskFullError(**json.loads(full))
            if code:
                self._record(name, code)
        counts = self.runs.counts()
        for _ in range(min(self.size - len(self.workers), counts["pending"])):
            self._start()
        return bool(counts["pending"] or counts["running"] or self.workers)

    def shutdown(self) -> None:
        """End all workers; each saves the step it is at."""
        for process in self.workers.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        for process in self.workers.values():
            try:
                process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def _start(self) -> None:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        job = {
            "folder": str(self.runs.folder),
            "owner": name,
            "allow_code": self.allow_code,
            "log": self.logs,
            "threads": self.threads,
        }
        # Worker output would disturb the progress view.
        with open_regular(self.log, append=True) as log:
            self.workers[name] = subprocess.Popen(  # noqa: S603, our own program
                command("calibrant.study.worker", [json.dumps(job)]),
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def _record(self, name: str, code: int) -> None:
        """Keep the reason why a worker died."""
        why = f"the worker ended with code {code}"
        if code < 0:
            hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
            why = f"the worker was killed by {signal.Signals(-code).name}{hint}"
        self.useless = 0 if self.runs.crash(name, why) else self.useless + 1
        if self.useless == USELESS:
            raise ChildProcessError(
                f"{why} before it took a run, as {USELESS - 1} others before: see {self.log}"
            )
