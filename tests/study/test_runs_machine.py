"""Any order of events: the folder agrees with a model of a few lines."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from calibrant.study.runs import MAX_ATTEMPTS, Claim, Runs

IDS = ("a", "b", "c")
# In memory where the system has such a folder; the disk would only make it slow.
ROOT = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


@dataclass
class Run:
    status: str = "pending"
    crashes: int = 0
    # Died, and nobody has looked since.
    silent: bool = False


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=ROOT)
        self.runs = Runs(self.folder, IDS)
        self.model = {id: Run() for id in IDS}
        self.claims: dict[str, Claim] = {}
        # Nobody else looks at these locks.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("calibrant.study.runs.GLANCE", 0.0)

    def teardown(self) -> None:
        self.patch.undo()
        for claim in self.claims.values():
            claim.lock.close()
        shutil.rmtree(self.folder)

    @rule(id=st.sampled_from(IDS))
    def claim(self, id: str) -> None:
        run, claim = self.model[id], self.runs.claim("w", [id])
        if run.status == "pending" and run.silent:
            run.silent, run.crashes = False, run.crashes + 1
            run.status = "failed" if run.crashes == MAX_ATTEMPTS else "pending"
        assert (claim is not None) == (run.status == "pending")
        if claim is not None:
            run.status = "running"
            self.claims[id] = claim

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), end=st.sampled_from(["done", "failed", "diverged", "released", "dead"]))
    def end(self, data, end: str) -> None:
        id = data.draw(st.sampled_from(sorted(self.claims)))
        run, claim = self.model[id], self.claims.pop(id)
        if end == "done":
            for name in ("result.json", "measured.json"):
                (claim.folder / name).write_text("{}")
        claim.lock.close() if end == "dead" else claim.end(end, reason=end)
        run.silent = end == "dead"
        run.status = end if end in ("done", "failed", "diverged") else "pending"

    @rule()
    def interrupt(self) -> None:
        self.runs.interrupt()
        for run in self.model.values():
            run.silent = False

    @rule(id=st.sampled_from(IDS))
    def retry(self, id: str) -> None:
        changed = self.runs.retry([id])
        assert changed == ([] if id in self.claims else [id])
        if changed:
            # An attempt that died before it was put back is closed later, but no longer counts.
            self.model[id] = Run()

    @invariant()
    def the_folder_agrees(self) -> None:
        assert [s.status for s in self.runs.states()] == [c.status for c in self.model.values()]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMachine.pytestmark = [pytest.mark.slow]
