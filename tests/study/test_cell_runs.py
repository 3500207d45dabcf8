"""The cells of a study as its folder holds them: who may run which, and what is recorded."""

import os
import threading

import pytest

from calibrant.files.locks import FileLock
from calibrant.study.runs import ENDS, MAX_ATTEMPTS, STATUSES, Runs, read_attempts

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


def finish(claim, **options) -> None:
    """What a training and its measuring leave, then the record of the attempt."""
    for name in ("result.json", "measured.json"):
        (claim.folder / name).write_text("{}\n")
    claim.end("done", **options)


def die(claim) -> None:
    """As the kernel does when the process ends."""
    claim.lock.close()


def statuses(runs) -> list[str]:
    return [state.status for state in runs.states()]


def outcomes(runs, id: str) -> list[str]:
    return [each.outcome for each in runs.state(id).attempts]


def test_cells_are_claimed_in_their_order_and_by_one_at_a_time(runs, tmp_path):
    claims = [runs.claim("w") for _ in IDS]
    assert [claim.id for claim in claims] == list(IDS)
    assert [claim.folder for claim in claims] == [tmp_path / "cells" / id for id in IDS]
    assert runs.claim("w") is None
    assert statuses(runs) == ["running"] * 3
    claims[1].end("released")
    assert runs.claim("w", ["a", "c"]) is None
    assert runs.claim("other").id == "b"


def test_a_new_object_sees_the_same(runs, tmp_path):
    runs.claim("w").end("failed", reason="no data", seconds=2.0)
    (state,) = Runs(tmp_path, ["a"]).states()
    assert (state.status, state.reason, state.seconds) == ("failed", "no data", 2.0)
    assert [each.owner for each in state.attempts] == ["w"]


@pytest.mark.parametrize("status", ENDS)
def test_a_cell_that_has_ended_is_not_claimed_again(runs, status):
    claim = runs.claim("w")
    finish(claim) if status == "done" else claim.end(status, reason="why")
    assert runs.state("a").status == status
    assert runs.state("a").reason == ("" if status == "done" else "why")
    assert runs.claim("w", ["a"]) is None


@pytest.mark.parametrize("name", ["result.json", "measured.json"])
def test_a_cell_is_done_when_it_is_trained_and_measured(runs, name):
    claim = runs.claim("w")
    (claim.folder / name).write_text("{}\n")
    die(claim)
    assert runs.state("a").status == "pending"
    finish(runs.claim("w"))
    assert runs.state("a").status == "done"


def test_a_cell_whose_worker_keeps_dying_is_given_up(runs):
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
    # Of a cell that another has taken meanwhile, nothing changes.
    die(runs.claim("w2", ["b"]))
    taken = runs.claim("w3", ["b"])
    assert runs.crash("w2", "killed by SIGKILL")
    assert outcomes(runs, "b") == ["crashed", "running"]
    taken.end("released")


def test_what_was_stopped_or_killed_with_the_whole_study_does_not_count(runs):
    for _ in range(MAX_ATTEMPTS + 1):
        die(runs.claim("w", ["a"]))
        runs.interrupt()
        runs.claim("w", ["a"]).end("released")
    assert runs.state("a").status == "pending"
    assert set(outcomes(runs, "a")) == {"interrupted", "released"}
    held = runs.claim("w", ["a"])
    runs.interrupt()
    assert outcomes(runs, "a")[-1] == "running"
    held.end("released")


def test_retry_puts_cells_back_with_all_their_attempts(runs):
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


def test_a_cell_that_runs_is_not_put_back(runs):
    claim = runs.claim("w", ["a"])
    assert runs.retry(["a"]) == []
    assert runs.state("a").status == "running"
    claim.end("released")


def test_counts_name_every_status(runs):
    assert runs.counts() == dict.fromkeys(STATUSES, 0) | {"pending": 3}


def test_looking_writes_nothing_and_works_in_a_folder_that_is_read_only(runs, tmp_path):
    runs.states()
    assert list(tmp_path.iterdir()) == []
    claim = runs.claim("w")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (claim.folder / "lock").chmod(0o444)
    assert statuses(runs) == ["running", "pending", "pending"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    claim.end("released")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"attempts": [{"owner": 1, "who": 2}]}',
        '{"attempts": [{"owner": "w", "started": 1.0, "outcome": "failed", "reason": 5}]}',
        '{"attempts": [{"owner": "w", "started": 1.0, "seconds": "x"}]}',
    ],
)
def test_a_damaged_record_is_refused_in_one_line(runs, text):
    runs.claim("w").end("released")
    (runs.folder_of("a") / "attempts.json").write_text(text)
    with pytest.raises(ValueError, match=r"attempts\.json is damaged") as refused:
        runs.states()
    assert "\n" not in str(refused.value)


def test_a_finished_cell_does_not_need_the_record_of_its_attempts(runs):
    finish(runs.claim("w"))
    (runs.folder_of("a") / "attempts.json").write_text("{")
    assert statuses(runs) == ["done", "pending", "pending"]
    assert runs.claim("w").id == "b"


@pytest.mark.parametrize("create", [True, False])
def test_a_lock_that_is_no_regular_file_is_refused_at_once(tmp_path, create):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
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


def test_threads_exclude_each_other(tmp_path):
    runs = Runs(tmp_path, [str(number) for number in range(60)])
    taken = []

    def work() -> None:
        while (claim := runs.claim(threading.current_thread().name)) is not None:
            taken.append(claim.id)
            finish(claim)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(runs.ids)


def test_a_lock_waits_as_long_as_it_is_told(tmp_path):
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert first.acquire()
        assert not second.acquire()
        threading.Timer(0.1, first.close).start()
        assert second.acquire(seconds=60.0)


def test_locks_are_shared_or_exclusive(tmp_path):
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert first.acquire(shared=True)
        assert second.acquire(shared=True)
        assert not first.acquire()
        second.close()
        assert first.acquire()


def test_attempts_are_kept_in_a_file_that_people_can_read(runs):
    runs.claim("w").end("failed", reason="no data", seconds=1.5)
    (attempt,) = read_attempts(runs.folder_of("a"))
    assert attempt.started <= attempt.ended
    assert '"reason": "no data"' in (runs.folder_of("a") / "attempts.json").read_text()
