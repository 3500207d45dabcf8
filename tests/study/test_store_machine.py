"""Any order of events: the store agrees with a model of a few lines."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from calibrant.study.store import ENDS, Claim, Store

MOST = 2
LEASES = st.sampled_from([1.0, 3.0])
# In memory where the system has such a folder; the disk would only make it slow.
ROOT = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


@dataclass
class Cell:
    status: str = "pending"
    attempt: int = 0
    tries: int = 0
    expires: float = 0.0
    times_done: int = 0


class Machine(RuleBasedStateMachine):
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=ROOT)
        self.now = 0.0
        self.model: dict[str, Cell] = {}
        self.seen: dict[str, int] = {}
        self.store = self.opened()

    def opened(self) -> Store:
        return Store.open(self.folder, max_attempts=MOST, clock=lambda: self.now)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.add(2)

    @rule(n=st.integers(1, 4))
    def add(self, n: int) -> None:
        for id in self.store.add([{"seed": seed} for seed in range(n)]):
            self.model.setdefault(id, Cell())

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def expire(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(target=claims, owner=st.sampled_from("ab"), lease=LEASES)
    def claim(self, owner: str, lease: float) -> Claim | None:
        pending = [id for id, cell in self.model.items() if cell.status == "pending"]
        for id, cell in self.model.items():
            if pending:
                break
            if cell.status == "running" and cell.expires <= self.now:
                cell.status = "failed" if cell.tries == MOST else "pending"
                pending = [id] if cell.status == "pending" else []
        claim = self.store.claim(owner, lease=lease)
        if not pending:
            assert claim is None
            return None
        assert claim is not None
        assert claim.id == pending[0]
        cell = self.model[claim.id]
        cell.status, cell.expires = "running", self.now + lease
        cell.attempt += 1
        cell.tries += 1
        assert claim.attempt == cell.attempt > self.seen.get(claim.id, 0)
        self.seen[claim.id] = claim.attempt
        return claim

    def current(self, claim: Claim) -> Cell | None:
        cell = self.model[claim.id]
        return cell if cell.status == "running" and cell.attempt == claim.attempt else None

    @rule(claim=claims, lease=LEASES)
    def heartbeat(self, claim: Claim | None, lease: float) -> None:
        if claim is not None:
            cell = self.current(claim)
            assert self.store.heartbeat(claim, lease=lease) == (cell is not None)
            if cell is not None:
                cell.expires = self.now + lease

    @rule(claim=claims, status=st.sampled_from(ENDS))
    def finish(self, claim: Claim | None, status: str) -> None:
        if claim is not None:
            cell = self.current(claim)
            assert self.store.finish(claim, status) == (cell is not None)
            if cell is not None:
                cell.status = status
                cell.times_done += status == "done"

    @rule(claim=claims)
    def crash(self, claim: Claim | None) -> None:
        if claim is not None:
            cell = self.current(claim)
            assert self.store.crash(claim, "died") == (cell is not None)
            if cell is not None:
                cell.status = "failed" if cell.tries == MOST else "pending"

    @rule(claim=claims)
    def release(self, claim: Claim | None) -> None:
        if claim is not None:
            cell = self.current(claim)
            assert self.store.release(claim) == (cell is not None)
            if cell is not None:
                cell.status = "pending"
                cell.tries -= 1

    @rule()
    def retry(self) -> None:
        again = [id for id, cell in self.model.items() if cell.status in ("failed", "diverged")]
        assert self.store.retry() == again
        for id in again:
            self.model[id].status, self.model[id].tries = "pending", 0

    @invariant()
    def store_and_model_agree(self) -> None:
        found = {cell.id: (cell.status, cell.attempt) for cell in self.store.cells()}
        assert found == {id: (cell.status, cell.attempt) for id, cell in self.model.items()}
        assert list(found) == list(self.model)

    @invariant()
    def each_cell_is_done_at_most_once(self) -> None:
        assert all(cell.times_done <= 1 for cell in self.model.values())

    @invariant()
    def every_attempt_is_on_record(self) -> None:
        for id, cell in self.model.items():
            history = self.store.attempts(id)
            assert [each.attempt for each in history] == list(range(1, cell.attempt + 1))
            running = [each.attempt for each in history if each.outcome == "running"]
            assert running == ([cell.attempt] if cell.status == "running" else [])
            assert [each.outcome for each in history].count("done") == cell.times_done


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
