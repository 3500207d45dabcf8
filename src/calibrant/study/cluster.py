"""Run a study on a Dask cluster: one process holds the store, the workers of the cluster train.

Dask would run the task of a dead worker again by itself, several times and unseen. So each task is
bound to one worker, and what happens after its death is decided here, by the store.
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
from calibrant.study.cluster_task import FILES, LIFE, greet, train_cell, versions
from calibrant.study.folder import states
from calibrant.study.grid import Study
from calibrant.study.rows import Row
from calibrant.study.runner import Snapshot, run_by
from calibrant.study.store import Claim, Store
from calibrant.study.worker import LEASE, named, next_claim
from calibrant.training.checkpoint import DiskFullError, write

# Seconds for the scheduler to answer, for some worker to be there, and for files to come.
ANSWER, NOBODY, TRANSFER = 10.0, 30.0, 60.0
# Written by this process; a worker that reads the same there shares the folder.
TOKEN = "cluster.token"  # noqa: S105, no secret
# Asked for by a function of Python's own: a task with one of ours ends a worker that lacks it.
ENTRY = "calibrant.study.cluster_task:LIFE"


def run_on_cluster(
    study: Study,
    folder: str | Path,
    *,
    address: str,
    allow_code: Sequence[str] = (),
    retry: bool = False,
    watch: Callable[[Snapshot], None] = lambda snapshot: None,
) -> list[Row]:
    """Run a study as `runner.run` does, with the workers of a Dask cluster.

    Each of them trains one cell at a time, with as many threads as it has. Workers that see the
    study's folder write there, and go on from checkpoints; from others the files of a cell come
    back when it has ended, and a cell that was left starts again.

    Args:
        study: from `read`.
        folder: of the study, on a local disk of this machine.
        address: of the scheduler, such as `tcp://host:8786`.
        allow_code: factories of models that the study may run; workers must have them, too.
        retry: run cells that failed or diverged once more.
        watch: called with the state of things a few times a second.

    Raises:
        ConnectionError: no scheduler answers, or it has no workers.
        ValueError: no worker has the same calibrant and Python as this process.
        InterruptedTrainingError: SIGTERM or SIGINT; cells under way are given back.
        DiskFullError: there is no room, here or on a worker.
    """
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
            lambda store: Cluster(client, address, store, study, allow_code),
            study,
            folder,
            allow_code=allow_code,
            retry=retry,
            watch=watch,
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
class Hand:
    """A worker of the cluster: what it said of itself, and what it does."""

    greeting: Any
    life: str = ""
    facts: Mapping[str, Any] | None = None
    refused: str = ""
    told: bool = False
    claim: Claim | None = None
    task: Any = None


class Cluster:
    """Gives the cells of a study to the workers of a cluster, one each, and records their ends."""

    def __init__(
        self, client: Any, address: str, store: Store, study: Study, allow_code: Sequence[str]
    ) -> None:
        self.client, self.address, self.store = client, address, store
        self.given = {"study": json.dumps(study.as_dict()), "allow_code": tuple(allow_code)}
        self.cells = study.by_id.keys()
        self.hands: dict[str, Hand] = {}
        self.known: dict[str, int] = {}
        self.owner = named("dask")
        self.seen = self.renewed = time.monotonic()
        self.token = store.folder.resolve() / TOKEN
        write(self.token, LIFE.encode())

    def busy(self, study: Study) -> bool:
        """Meet new workers, record what has ended, hand out what is pending."""
        threads = self._threads()
        for address in self.hands.keys() - threads.keys():
            self._lost(self.hands.pop(address), f"the worker {address} was killed or cut off")
        for address in threads.keys() - self.hands.keys():
            self.hands[address] = Hand(self._submit(pkgutil.resolve_name, ENTRY, address=address))
        for address, hand in list(self.hands.items()):
            if hand.claim is not None:
                self._look(address, hand, hand.claim)
            elif hand.facts is None:
                self._meet(address, hand)
        self._renew()
        able = {a: h for a, h in self.hands.items() if h.facts is not None and not h.refused}
        self._complain(alone=not able)
        for address, hand in able.items():
            if hand.claim is None and not self._give(address, hand, threads[address]):
                break
        return any(s.status in ("pending", "running") for s in states(study, self.store))

    def dismiss(self) -> None:
        """Give all cells back; trainings end at their next step, since nobody wants them."""
        for hand in self.hands.values():
            if hand.claim is not None:
                hand.task.release()
                self.store.release(hand.claim)
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
        if late > NOBODY:
            raise ConnectionError(
                f"the Dask scheduler at {self.address} has had no workers for {NOBODY:.0f} s: "
                f"start some with `dask worker {self.address}` and run the same command again"
            )
        self.seen = time.monotonic() - late
        return self.known

    def _submit(self, function: Callable[..., Any], *args: Any, address: str, key: str = "") -> Any:
        key = key or f"calibrant-{secrets.token_hex(8)}"
        return self.client.submit(
            function, *args, key=key, pure=False, retries=0, workers=[address]
        )

    def _meet(self, address: str, hand: Hand) -> None:
        """See whether a worker can take part."""
        if hand.greeting.status == "pending":
            return
        try:
            said = hand.greeting.result(timeout=ANSWER)
            if not hand.life:
                hand.life = said
                hand.greeting = self._submit(greet, str(self.token), address=address)
                return
            hand.facts, hand.refused = said, refusal(said)
        except Exception as error:
            hand.facts, hand.refused = {}, f"cannot take part ({type(error).__name__}: {error})"
        if hand.refused:
            hand.refused = f"the Dask worker {address} {hand.refused}: install the same everywhere"

    def _complain(self, *, alone: bool) -> None:
        """Tell once of workers that cannot take part; an error if there are no others."""
        refused = [hand for hand in self.hands.values() if hand.refused]
        if refused and len(refused) == len(self.hands):
            raise ValueError(refused[0].refused)
        for hand in refused:
            if not (alone or hand.told):
                hand.told = True
                warnings.warn(f"{hand.refused}; it is not used", stacklevel=2)

    def _give(self, address: str, hand: Hand, threads: int) -> bool:
        """Claim a cell for a worker; False if none is pending."""
        claim = next_claim(self.store, self.cells, owner=self.owner, lease=LEASE)
        if claim is None:
            return False
        claim.folder.mkdir(parents=True, exist_ok=True)
        facts = hand.facts or {}
        # No other driver, and no other attempt, has this name.
        key = f"calibrant-{claim.id}-{claim.attempt}-{secrets.token_hex(8)}"
        job = {**self.given, "id": claim.id, "key": key, "threads": threads, "life": hand.life}
        job["folder"] = str(claim.folder.resolve()) if facts["sees"] == LIFE else None
        hand.claim, hand.task = claim, self._submit(train_cell, job, address=address, key=key)
        return True

    def _look(self, address: str, hand: Hand, claim: Claim) -> None:
        """Record the end of a cell, if it has ended; after an error `dismiss` gives it back."""
        if hand.task.status == "pending":
            return
        try:
            record = hand.task.result(timeout=TRANSFER)
        except Exception as error:
            record = {"status": "lost", "reason": f"{type(error).__name__}: {error}"}
        if record["status"] == "full":
            raise DiskFullError(f"the Dask worker {address} {record['reason']}")
        if record["status"] == "lost":
            # It is met again, since it may be another process under the same address.
            self._lost(self.hands.pop(address), f"the worker {address}: {record['reason']}")
            return
        # Not the files of an attempt that has been given to another.
        if self.store.heartbeat(claim, lease=LEASE):
            for name in FILES:
                if name in record["files"]:
                    write(claim.folder / name, record["files"][name])
            status, reason, seconds = (record[each] for each in ("status", "reason", "seconds"))
            self.store.finish(claim, status, reason=reason, seconds=seconds)
        hand.claim = hand.task = None

    def _lost(self, hand: Hand, why: str) -> None:
        """A worker died: its cell's attempt is over, and the reason is kept."""
        if hand.claim is not None:
            hand.task.release()
            self.store.crash(hand.claim, " ".join(why.split())[:500])

    def _renew(self) -> None:
        if time.monotonic() - self.renewed < LEASE / 12:
            return
        self.renewed = time.monotonic()
        for hand in self.hands.values():
            if hand.claim is not None and not self.store.heartbeat(hand.claim, lease=LEASE):
                hand.task.release()
                hand.claim = None


def refusal(facts: Mapping[str, Any]) -> str:
    """Why a worker cannot take part; empty if it can."""
    for name, ours in versions().items():
        if facts[name] != ours:
            return f"has {name} {facts[name]}, but this process has {ours}"
    return ""
