"""The runs of a study as its folder holds them: files say what is done, a lock says who trains.

Every run has a folder of its own. Whoever holds the lock of that folder trains the run; the kernel
ends the lock with its process. So a suspended worker keeps its run, a dead one loses it at once,
and no clock decides.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calibrant.files.atomic import sweep
from calibrant.files.locks import GLANCE, FileLock, is_locked
from calibrant.study.rows import MEASURED
from calibrant.training.folder import DIVERGED, LOCK, RESULT, damaged, read_json, write_json

ATTEMPTS = "attempts.json"
# Of a run; the last three are final.
STATUSES = ("pending", "running", "done", "diverged", "failed")
# How often a run is tried whose worker dies.
MAX_ATTEMPTS = 3
DIED = "the worker died"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run.

    Attributes:
        owner: name of the worker.
        started: in seconds since 1970, as is `ended`, which is None while it runs.
        outcome: running, done, diverged, failed, crashed (its worker died), interrupted (the whole
            study was killed) or released (its worker was asked to stop). Only crashes count.
        reason: why it did not succeed.
        seconds: how long it took, if its worker said so.
        retried: whether the run was put back afterwards, so that this attempt no longer counts.
    """

    owner: str
    started: float
    ended: float | None = None
    outcome: str = "running"
    reason: str = ""
    seconds: float | None = None
    retried: bool = False


@dataclass(frozen=True)
class RunState:
    """A run as it stands: one of `STATUSES`, and its attempts, the first one first."""

    id: str
    status: str
    attempts: tuple[Attempt, ...] = ()

    @property
    def reason(self) -> str:
        """Why the last attempt did not succeed; empty if it did, or while one runs."""
        last = self.attempts[-1:] if self.status not in ("running", "done") else ()
        return "".join(each.reason for each in last if not each.retried)

    @property
    def seconds(self) -> float | None:
        """What the last attempt took, if it has ended and its worker said so."""
        return self.attempts[-1].seconds if self.attempts else None


@dataclass(frozen=True)
class Claim:
    """A run that this process trains until it ends the claim, or dies."""

    id: str
    folder: Path
    lock: FileLock

    def end(self, outcome: str, *, reason: str = "", seconds: float | None = None) -> None:
        """Record how the attempt ended, and release the run."""
        with self.lock:
            *before, last = _ended(read_attempts(self.folder), outcome, reason)
            _write(self.folder, [*before, replace(last, seconds=seconds)])


class Runs:
    """The runs of a study, shared by all processes of a machine that see its folder.

    Args:
        folder: folder of the study, on a local disk.
        ids: ids of the runs, in the order in which they are trained.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = Runs(folder, ["a", "b"])
        ...     claim = runs.claim("worker 1")
        ...     before = runs.counts()["running"]
        ...     claim.end("failed", reason="out of luck")
        ...     before, [(state.id, state.status) for state in runs.states()]
        (1, [('a', 'failed'), ('b', 'pending')])
    """

    def __init__(self, folder: str | Path, ids: Iterable[str]) -> None:
        self.folder, self.ids = Path(folder), tuple(ids)

    def folder_of(self, id: str) -> Path:
        """Where the files of a run are."""
        return self.folder / "cells" / id

    def state(self, id: str) -> RunState:
        """How a run stands; nothing is written."""
        folder = self.folder_of(id)
        try:
            attempts = read_attempts(folder)
        except ValueError:
            # How a finished run came about is not needed.
            if not _finished(folder):
                raise
            attempts = []
        status = _status(folder, attempts)
        if status == "pending" and is_locked(folder / LOCK):
            status = "running"
        return RunState(id, status, tuple(attempts))

    def states(self) -> list[RunState]:
        """All runs, in their order."""
        return [self.state(id) for id in self.ids]

    def counts(self) -> dict[str, int]:
        """How many runs have each status."""
        found = [state.status for state in self.states()]
        return {status: found.count(status) for status in STATUSES}

    def claim(self, owner: str, ids: Iterable[str] | None = None) -> Claim | None:
        """The first pending run, now this worker's; None if there is none.

        None does not mean that all have ended: others may train them.
        """
        for id in self.ids if ids is None else ids:
            folder = self.folder_of(id)
            if _finished(folder) or _status(folder, read_attempts(folder)) != "pending":
                continue
            if folder.is_symlink():
                raise ValueError(f"{folder} is a link; runs are written to real folders only")
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / LOCK)
            try:
                # What is read before the lock is held may be old.
                if lock.acquire() and _begin(folder, owner):
                    return Claim(id, folder, lock)
            except BaseException:
                lock.close()
                raise
            lock.close()
        return None

    def crash(self, owner: str, reason: str) -> bool:
        """Record why a worker died; whether it ever had a run."""
        known = False
        for id in self.ids:
            attempts = self.state(id).attempts
            known = known or any(each.owner == owner for each in attempts)
            last = attempts[-1] if attempts else None
            if last and last.owner == owner and last.outcome in ("running", "crashed"):
                self._change(id, lambda attempts: _ended(attempts, "crashed", reason, owner))
        return known

    def interrupt(self) -> None:
        """End the attempts of workers that are gone without a charge: all were killed at once."""
        for id in self.ids:
            if any(each.outcome == "running" for each in self.state(id).attempts[-1:]):
                self._change(id, lambda attempts: _ended(attempts, "interrupted", DIED))

    def retry(self, ids: Iterable[str]) -> list[str]:
        """Put runs back that have ended, with all their attempts; returns those not in use.

        Their checkpoints stay; what says that they are done or diverged goes.
        """

        def put_back(attempts: list[Attempt]) -> list[Attempt]:
            return [replace(each, retried=True) for each in attempts]

        return [id for id in ids if self._change(id, put_back, gone=(RESULT, DIVERGED))]

    def _change(
        self, id: str, change: Callable[[list[Attempt]], list[Attempt]], gone: Sequence[str] = ()
    ) -> bool:
        """Change what is recorded of a run, and remove files, unless somebody trains it."""
        folder = self.folder_of(id)
        if not folder.is_dir():
            return True
        with FileLock(folder / LOCK) as lock:
            if not lock.acquire(seconds=GLANCE):
                return False
            for name in gone:
                (folder / name).unlink(missing_ok=True)
            _write(folder, change(read_attempts(folder)))
        return True


def read_attempts(folder: Path) -> list[Attempt]:
    """All attempts at the run of a folder, the first one first."""
    held = read_json(folder / ATTEMPTS)
    try:
        attempts = [] if held is None else [Attempt(**each) for each in held["attempts"]]
    except (KeyError, TypeError) as error:
        raise damaged(folder / ATTEMPTS) from error
    for each in attempts:
        texts = (each.owner, each.outcome, each.reason)
        numbers = (each.started, each.ended or 0.0, each.seconds or 0.0)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int | float) for number in numbers
        ):
            raise damaged(folder / ATTEMPTS)
    return attempts


def _write(folder: Path, attempts: Sequence[Attempt]) -> None:
    write_json(folder / ATTEMPTS, {"attempts": [asdict(each) for each in attempts]})


def _ended(
    attempts: list[Attempt], outcome: str, reason: str, owner: str | None = None
) -> list[Attempt]:
    """The same attempts, the last of them ended, unless it has ended or is another owner's."""
    *before, last = attempts
    if last.outcome not in ("running", "crashed") or owner not in (None, last.owner):
        return attempts
    return [*before, replace(last, ended=time.time(), outcome=outcome, reason=reason)]


def _begin(folder: Path, owner: str) -> bool:
    """Begin an attempt under the lock, if the run is still pending."""
    attempts = read_attempts(folder)
    if attempts and attempts[-1].outcome == "running":
        # Its lock was free.
        attempts = _ended(attempts, "crashed", DIED)
    pending = _status(folder, attempts) == "pending"
    if pending:
        sweep(folder)
        attempts.append(Attempt(owner, time.time()))
    _write(folder, attempts)
    return pending


def _finished(folder: Path) -> bool:
    """Whether a run is trained and measured."""
    return (folder / RESULT).exists() and (folder / MEASURED).exists()


def _status(folder: Path, attempts: Sequence[Attempt]) -> str:
    """Status of a run, but for whether somebody trains it."""
    if _finished(folder):
        return "done"
    counted = [each.outcome for each in attempts if not each.retried]
    if counted and counted[-1] in ("diverged", "failed"):
        return counted[-1]
    return "failed" if counted.count("crashed") >= MAX_ATTEMPTS else "pending"
