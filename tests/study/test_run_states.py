"""The runs of a study as its folder holds them: who may train which, and what is recorded."""

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sharing_runs import finish

from calibrant.files.locks import FileLock
from calibrant.study.runs import MAX_ATTEMPTS, STATUSES, Claim, Runs

IDS = ("a", "b", "c")


class Kept(Runs):
    """Keeps its claims, so that none ends because nobody holds it."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.claims = []

    def claim(self, *args):
        claim = super().claim(*args)
        self.claims += [claim] if claim else []
        return claim


@pytest.fixture
def runs(tmp_path):
    made = Kept(tmp_path, IDS)
    yield made
    for claim in made.claims:
        claim.lock.close()


def die(claim) -> None:
    """As the kernel does when the process ends."""
    claim.lock.close()


def statuses(runs) -> list[str]:
    return [state.status for state in runs.states()]


def outcomes(runs, id: str) -> list[str]:
    return [each.outcome for each in runs.state(id).attempts]


def test_runs_are_claimed_in_their_order_and_by_one_at_a_time(runs, tmp_path):
    assert runs.counts() == dict.fromkeys(STATUSES, 0) | {"pending": 3}
    claims = [runs.claim("w") for _ in IDS]
    assert [claim.id for claim in claims] == list(IDS)
    assert [claim.folder for claim in claims] == [tmp_path / "cells" / id for id in IDS]
    assert runs.claim("w") is None
    assert statuses(runs) == ["running"] * 3
    claims[1].end("released")
    assert runs.claim("w", ["a", "c"]) is None
    assert runs.claim("other").id == "b"


@pytest.mark.parametrize("status", ["done", "diverged", "failed"])
def test_a_run_that_has_ended_is_not_claimed_again(runs, tmp_path, status):
    claim = runs.claim("w")
    if status == "done":
        finish(claim, seconds=2.0)
    else:
        claim.end(status, reason="no data", seconds=2.0)
    assert runs.claim("w", ["a"]) is None
    # Another process sees the same.
    (state,) = Runs(tmp_path, ["a"]).states()
    assert (state.status, state.seconds) == (status, 2.0)
    assert state.reason == ("" if status == "done" else "no data")
    assert [each.owner for each in state.attempts] == ["w"]
    assert state.attempts[0].started <= state.attempts[0].ended


@pytest.mark.parametrize("name", ["result.json", "measured.json"])
def test_a_run_is_done_when_it_is_trained_and_measured(runs, name):
    claim = runs.claim("w")
    (claim.folder / name).write_text("{}\n")
    die(claim)
    assert runs.state("a").status == "pending"
    finish(runs.claim("w"))
    assert runs.state("a").status == "done"


def test_a_run_whose_worker_keeps_dying_is_given_up(runs):
    for _ in range(MAX_ATTEMPTS):
        die(runs.claim("w", ["a"]))
        assert runs.state("a").status == "pending"
    assert runs.claim("w", ["a"]) is None
    assert (runs.state("a").status, runs.state("a").reason) == ("failed", "the worker died")
    assert outcomes(runs, "a") == ["crashed"] * MAX_ATTEMPTS


def test_the_reason_of_a_death_is_kept_for_the_worker_that_died(runs):
    die(runs.claim("w1", ["a"]))
    assert runs.crash("w1", "killed by SIGKILL")
    assert not runs.crash("nobody", "killed")
    (attempt,) = runs.state("a").attempts
    assert (attempt.outcome, attempt.reason) == ("crashed", "killed by SIGKILL")
    # Of a run that another has taken meanwhile, nothing changes.
    die(runs.claim("w2", ["b"]))
    taken = runs.claim("w3", ["b"])
    assert runs.crash("w2", "killed by SIGKILL")
    assert outcomes(runs, "b") == ["crashed", "running"]
    taken.end("released")


def test_what_was_stopped_or_killed_with_the_whole_study_does_not_count(runs, monkeypatch):
    for _ in range(MAX_ATTEMPTS + 1):
        die(runs.claim("w", ["a"]))
        runs.interrupt()
        runs.claim("w", ["a"]).end("released")
    assert runs.state("a").status == "pending"
    assert set(outcomes(runs, "a")) == {"interrupted", "released"}
    held = runs.claim("w", ["a"])
    runs.interrupt()
    assert outcomes(runs, "a")[-1] == "running"
    # An attempt that ends between a look at it and the lock keeps its outcome.
    before = runs.state("a")
    held.end("failed", reason="no data")
    monkeypatch.setattr(Runs, "state", lambda *_: before)
    runs.interrupt()
    runs.crash("w", "killed")
    monkeypatch.undo()
    assert outcomes(runs, "a")[-1] == "failed"


def test_retry_puts_runs_back_with_all_their_attempts_unless_they_are_trained(runs):
    runs.claim("w", ["a"]).end("diverged", reason="wild")
    (runs.folder_of("a") / "diverged.json").write_text("{}\n")
    for _ in range(MAX_ATTEMPTS):
        die(runs.claim("w", ["b"]))
    finish(runs.claim("w", ["c"]))
    assert runs.claim("w") is None
    assert runs.retry(["a", "b", "c"]) == ["a", "b", "c"]
    assert statuses(runs) == ["pending"] * 3
    assert [state.reason for state in runs.states()] == [""] * 3
    assert not (runs.folder_of("a") / "diverged.json").exists()
    for _ in range(MAX_ATTEMPTS - 1):
        die(runs.claim("w", ["b"]))
    assert runs.claim("w", ["b"]) is not None
    assert runs.retry(["b"]) == []
    assert runs.state("b").status == "running"


def test_looking_writes_nothing_and_works_in_a_folder_that_is_read_only(runs, tmp_path):
    runs.states()
    assert list(tmp_path.iterdir()) == []
    claim = runs.claim("w")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (claim.folder / "lock").chmod(0o444)
    assert statuses(runs) == ["running", "pending", "pending"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    claim.end("released")


def test_a_damaged_record_is_refused_in_one_line_unless_the_run_is_finished(runs):
    runs.claim("w").end("released")
    record = runs.folder_of("a") / "attempts.json"
    for text in (
        "{",
        "[]",
        "{}",
        '{"attempts": [{"owner": 1, "who": 2}]}',
        '{"attempts": [{"owner": "w", "started": 1.0, "outcome": "failed", "reason": 5}]}',
        '{"attempts": [{"owner": "w", "started": 1.0, "seconds": "x"}]}',
    ):
        record.write_text(text)
        with pytest.raises(ValueError, match=r"attempts\.json is damaged[^\n]*$"):
            runs.states()
    record.unlink()
    finish(runs.claim("w"))
    record.write_text("{")
    assert statuses(runs) == ["done", "pending", "pending"]
    assert runs.claim("w").id == "b"


def test_a_lock_that_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    for name, create in product(("pipe", "link", "folder"), (True, False)):
        with pytest.raises(ValueError, match=f"{name} must be a regular file"):
            FileLock(tmp_path / name, create=create)
    assert not (tmp_path / "elsewhere").exists()


def test_an_error_while_claiming_leaves_the_lock_free(runs, monkeypatch):
    def full(*_) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("calibrant.study.runs._write", full)
        with pytest.raises(OSError, match="no room"):
            runs.claim("w")
    assert runs.claim("w").id == "a"


def test_locks_are_shared_or_exclusive_and_wait_as_long_as_they_are_told(tmp_path):
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert first.acquire(shared=True)
        assert second.acquire(shared=True)
        assert not first.acquire()
        threading.Timer(0.1, second.close).start()
        assert first.acquire(seconds=60.0)


# In memory where the system has such a folder; the disk would only make it slow.
ROOT = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


@dataclass
class Run:
    status: str = "pending"
    crashes: int = 0
    # Died, and nobody has looked since.
    silent: bool = False


class Machine(RuleBasedStateMachine):
    """Any order of events: the folder agrees with a model of a few lines."""

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
            finish(claim)
        else:
            die(claim) if end == "dead" else claim.end(end, reason=end)
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
