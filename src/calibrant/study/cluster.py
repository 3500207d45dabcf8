"""Run a study on a Dask cluster: this process distributes runs, the workers of the cluster train.

Dask would run the task of a dead worker again by itself, several times and unseen. So each task is
bound to one worker, and what happens after its death is decided here. A worker that sees the
study's folder claims its run there, as workers of this machine do; for others this process does.
"""

import json
import logging
import pkgutil
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.extras import need
from calibrant.study.cluster_task import FILES, INCARNATION, describe_worker, train_cell, versions
from calibrant.study.grid import Study
from calibrant.study.rows import Rows
from calibrant.study.runner import Snapshot, run_by
from calibrant.study.runs import Claim, Runs
from calibrant.training.checkpoint import DiskFullError, write
from calibrant.training.loggers import prepare_loggers

# Seconds for the scheduler to answer, to wait for a first worker, and for files to arrive.
ANSWER, NO_WORKERS, TRANSFER = 10.0, 30.0, 60.0
# Written by this process; a worker that reads the same there shares the folder.
TOKEN = "cluster.token"  # noqa: S105, no secret
# Asked for by a function of Python's own: a task with one of ours ends a worker that lacks it.
ENTRY = "calibrant.study.cluster_task:INCARNATION"


def run_on_cluster(
    study: Study,
    folder: str | Path,
    *,
    address: str,
    allow_code: Sequence[str] = (),
    retry: bool = False,
    log: Sequence[str] = (),
    watch: Callable[[Snapshot], None] = lambda snapshot: None,
) -> Rows:
    """Run a study as `runner.run` does, with the workers of a Dask cluster.

    Each of them trains one run at a time, with as many threads as it has. Workers that see the
    study's folder write there, and resume from checkpoints; from others the files of a run come
    back when it has ended, and an interrupted run starts again. Arguments and errors are those of
    `runner.run`, except for these; workers must have the code of `allow_code`, too.

    Args:
        address: address of the scheduler, such as `tcp://host:8786`.

    Raises:
        ConnectionError: no scheduler answers, or it has no workers.
        ValueError: no worker has the same calibrant and Python as this process.
    """
    prepare_loggers(log)
    distributed = need("distributed", extra="cluster", what="a study on a Dask cluster")
    with _quiet(), ExitStack() as stack:
        try:
            client = distributed.Client(address, timeout=ANSWER, set_as_default=False)
        except Exception as error:
            # Something that is no scheduler may answer anything, and is read as anything.
            raise ConnectionError(
                f"no Dask scheduler answers at {address} within {ANSWER:.0f} s: start one with "
                "`dask scheduler`, or correct the address (8787 is that of its dashboard)"
            ) from error
        stack.callback(client.close, timeout=2)
        return run_by(
            lambda runs: Cluster(client, address, runs, study, allow_code, log),
            *(study, folder, retry, watch),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Dask tells about connections and versions out of the user's terminal."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    loggers = [logging.getLogger(name) for name in ("distributed", *names)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="distributed")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass
class Worker:
    """A worker of the cluster: its description, and its run.

    Attributes:
        description: task that returns the description.
        incarnation: id of the process, which changes when the worker is restarted.
        id: id of its run; empty while it has none.
        claim: claim on that run, where the worker does not see the folder.
        task: task that trains the run; its key is the owner of the attempt.
    """

    description: Any
    incarnation: str = ""
    facts: Mapping[str, Any] | None = None
    refused: str = ""
    warned: bool = False
    id: str = ""
    claim: Claim | None = None
    task: Any = None


class Cluster:
    """Assigns the runs of a study to the workers of a cluster, one each, and collects results."""

    def __init__(
        self,
        client: Any,
        address: str,
        runs: Runs,
        study: Study,
        allow_code: Sequence[str],
        log: Sequence[str] = (),
    ) -> None:
        self.client, self.address, self.runs = client, address, runs
        self.given = {"study": json.dumps(study.as_dict()), "allow_code": tuple(allow_code)}
        self.given["log"] = tuple(log)
        self.workers: dict[str, Worker] = {}
        self.known: dict[str, int] = {}
        self.seen = time.monotonic()
        self.token = runs.folder.resolve() / TOKEN
        write(self.token, INCARNATION.encode())

    def poll(self) -> bool:
        """Check new workers, collect results, assign pending runs."""
        threads = self._threads()
        for address in self.workers.keys() - threads.keys():
            self._worker_died(
                self.workers.pop(address), f"the worker {address} was killed or cut off"
            )
        for address in threads.keys() - self.workers.keys():
            description = self._submit(pkgutil.resolve_name, ENTRY, address=address)
            self.workers[address] = Worker(description)
        for address, worker in list(self.workers.items()):
            if worker.id:
                self._collect(address, worker)
            elif worker.facts is None:
                self._check_worker(address, worker)
        able = {a: w for a, w in self.workers.items() if w.facts is not None and not w.refused}
        self._warn_refused(others=bool(able))
        states = self.runs.states()
        given = {worker.id for worker in self.workers.values()}
        pending = [s.id for s in states if s.status == "pending" and s.id not in given]
        for address, worker in able.items():
            if not worker.id and pending:
                self._assign(address, worker, pending.pop(0), threads[address])
        return any(state.status in ("pending", "running") for state in states)

    def shutdown(self) -> None:
        """Release all runs; their attempts are cancelled and end at the next step."""
        for worker in self.workers.values():
            if worker.id:
                worker.task.release()
            if worker.claim is not None:
                worker.claim.end("released")
        self.token.unlink(missing_ok=True)

    def _threads(self) -> dict[str, int]:
        """Threads of every worker, by address; an error if there has been none for a while."""
        try:
            self.known = self.client.sync(self.client.scheduler.ncores, callback_timeout=3)
        except (OSError, RuntimeError):
            # It is busy, or gone: that says nothing about the workers.
            late = time.monotonic() - self.seen
        else:
            late = 0.0 if self.known else time.monotonic() - self.seen
        if late > NO_WORKERS:
            raise ConnectionError(
                f"the Dask scheduler at {self.address} has had no workers for {NO_WORKERS:.0f} s: "
                f"start some with `dask worker {self.address}` and re-run the same command"
            )
        self.seen = time.monotonic() - late
        return self.known

    def _submit(self, function: Callable[..., Any], *args: Any, address: str, key: str = "") -> Any:
        settings = {"key": key or f"calibrant-{secrets.token_hex(8)}", "workers": [address]}
        return self.client.submit(function, *args, pure=False, retries=0, **settings)

    def _check_worker(self, address: str, worker: Worker) -> None:
        """Check whether a worker can take part."""
        if worker.description.status == "pending":
            return
        try:
            said = worker.description.result(timeout=ANSWER)
            if not worker.incarnation:
                worker.incarnation = said
                worker.description = self._submit(describe_worker, str(self.token), address=address)
                return
            worker.facts = said
            others = [(name, ours) for name, ours in versions().items() if said[name] != ours]
            why = "".join(f"has {n} {said[n]}, but this process has {o}" for n, o in others[:1])
        except Exception as error:
            worker.facts, why = {}, f"cannot take part ({type(error).__name__}: {error})"
        if why:
            worker.refused = f"the Dask worker {address} {why}: install the same everywhere"

    def _warn_refused(self, *, others: bool) -> None:
        """Warn once of workers that cannot take part; an error if there are no others."""
        refused = [worker for worker in self.workers.values() if worker.refused]
        if refused and len(refused) == len(self.workers):
            raise ValueError(refused[0].refused)
        for worker in refused:
            if others and not worker.warned:
                worker.warned = True
                warnings.warn(f"{worker.refused}; it is not used", stacklevel=2)

    def _assign(self, address: str, worker: Worker, id: str, threads: int) -> None:
        """Have a worker train a run, unless another process has claimed it."""
        # Different for every attempt.
        key = f"calibrant-{id}-{secrets.token_hex(8)}"
        job = {
            **self.given,
            "id": id,
            "key": key,
            "threads": threads,
            "incarnation": worker.incarnation,
        }
        shared = (worker.facts or {})["sees"] == INCARNATION
        job["folder"] = str(self.runs.folder.resolve()) if shared else None
        if not shared:
            worker.claim = self.runs.claim(key, [id])
            if worker.claim is None:
                return
        worker.id, worker.task = id, self._submit(train_cell, job, address=address, key=key)

    def _collect(self, address: str, worker: Worker) -> None:
        """Record the end of a run, if it has ended; after an error `shutdown` releases it."""
        if worker.task.status == "pending":
            return
        try:
            record = worker.task.result(timeout=TRANSFER)
        except Exception as error:
            record = {"status": "lost", "reason": f"{type(error).__name__}: {error}"}
        if record["status"] == "full":
            raise DiskFullError(**{**record["error"], "host": f"the Dask worker {address}"})
        if record["status"] == "lost":
            # Checked again: it may be another process under the same address.
            self._worker_died(
                self.workers.pop(address), f"the worker {address}: {record['reason']}"
            )
            return
        if worker.claim is not None:
            for name in FILES:
                if name in record["files"]:
                    write(worker.claim.folder / name, record["files"][name])
            reason, seconds = record["reason"], record["seconds"]
            worker.claim.end(record["status"], reason=reason, seconds=seconds)
        worker.id, worker.claim, worker.task = "", None, None

    def _worker_died(self, worker: Worker, why: str) -> None:
        """End the attempt of a worker that died, and keep the reason."""
        if not worker.id:
            return
        why = " ".join(why.split())[:500]
        if worker.claim is not None:
            worker.claim.end("crashed", reason=why)
        else:
            self.runs.crash(str(worker.task.key), why)
        worker.task.release()
