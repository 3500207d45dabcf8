"""What the store says about cells, and what it refuses."""

import sqlite3
import threading
from pathlib import Path

import pytest

from calibrant.study import store_connection
from calibrant.study.store import STATUSES, Store, cell_id

LEASE = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with Store.open(tmp_path, clock=clock) as opened:
        yield opened


def cells(n: int) -> list[dict]:
    return [{"method": "focal", "seed": seed} for seed in range(n)]


def only(store: Store):
    (cell,) = store.cells()
    return cell


def test_ids_do_not_depend_on_the_order_of_names():
    assert cell_id({"a": 1, "b": {"c": 2, "d": 3}}) == cell_id({"b": {"d": 3, "c": 2}, "a": 1})


def test_an_id_is_the_start_of_the_sha256_of_the_canonical_json():
    # printf '{"a":[1,2.5,null],"b":"\\u00e4"}' | sha256sum
    assert cell_id({"b": "ä", "a": [1, 2.5, None]}) == "f4b054685b56a681"


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (1, "1"), (None, "null"), ([1], [[1]]), ({}, [])]
)
def test_different_values_have_different_ids(one, other):
    assert cell_id({"value": one}) != cell_id({"value": other})


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lr": float("nan")}, "plain JSON without NaN"),
        ({"lr": float("inf")}, "plain JSON without NaN"),
        ({"lr": {1, 2}}, "plain JSON"),
        ({1: "a"}, "names of settings must be text"),
        ({"a": [{2: "b"}]}, "names of settings must be text"),
    ],
)
def test_settings_that_are_not_plain_json_are_refused(config, message):
    with pytest.raises(ValueError, match=message) as refused:
        cell_id(config)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_cell_that_is_no_dict_is_refused():
    with pytest.raises(TypeError, match="must be a dict of settings, got list"):
        cell_id([1])


def test_text_of_users_never_becomes_a_path(store, tmp_path):
    names = [
        "../../x",
        "/etc/passwd",
        "a\0b",
        "CON",
        "x" * 300,
        "..",
        "\ud800",
        "'; DROP TABLE cells",
    ]
    store.add([{"name": name, name: 1} for name in names])
    for name in names:
        claim = store.claim("../../" + name, lease=LEASE)
        assert claim.config["name"] == name
        assert claim.folder.parent == tmp_path / "cells"
        assert len(claim.folder.name) == 16
        assert set(claim.folder.name) <= set("0123456789abcdef")
        assert store.finish(claim, "failed", reason=name)
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}


def test_cells_are_claimed_in_the_order_in_which_they_were_added(store):
    ids = store.add(cells(5))
    ids += store.add([{"seed": "late"}])
    assert [cell.id for cell in store.cells()] == ids
    assert [cell.position for cell in store.cells()] == list(range(6))
    assert [store.claim("w", lease=LEASE).id for _ in range(6)] == ids
    assert store.claim("w", lease=LEASE) is None


def test_to_add_again_changes_nothing_and_new_ones_come_last(store):
    store.add(cells(3))
    store.finish(store.claim("w", lease=LEASE), "done", seconds=2.0)
    before = store.cells()
    ids = store.add(cells(4)[::-1])
    assert ids == [cell_id(cell) for cell in cells(4)[::-1]]
    assert store.cells()[:3] == before
    assert store.cells()[3].config == {"method": "focal", "seed": 3}


def test_the_first_duplicate_is_named_and_nothing_is_added(store):
    doubled = [{"a": 0}, {"a": 1, "b": 2}, {"a": 3}, {"b": 2, "a": 1}, {"a": 3}]
    with pytest.raises(ValueError, match=r'number 3 is number 1 again: {"a":1,"b":2}'):
        store.add(doubled)
    assert store.cells() == []


def test_a_claim_says_what_to_run_and_where(store, tmp_path):
    (id,) = store.add([{"seed": 4}])
    claim = store.claim("w", lease=LEASE)
    assert (claim.id, claim.config, claim.attempt, claim.owner) == (id, {"seed": 4}, 1, "w")
    assert claim.folder == tmp_path / "cells" / id == store.folder_of(id)
    assert (only(store).status, only(store).owner, only(store).attempt) == ("running", "w", 1)


@pytest.mark.parametrize("status", ["done", "diverged", "failed"])
def test_a_finished_cell_is_never_run_or_finished_again(store, clock, status):
    store.add(cells(1))
    claim = store.claim("w", lease=LEASE)
    clock.now += 3
    assert store.finish(claim, status, reason="so", seconds=2.5)
    clock.now += 1000
    before = store.cells()
    assert (before[0].status, before[0].reason, before[0].seconds) == (status, "so", 2.5)
    assert not store.finish(claim, "done")
    assert not store.heartbeat(claim, lease=LEASE)
    assert not store.release(claim)
    assert not store.crash(claim, "late")
    assert store.claim("other", lease=LEASE) is None
    assert store.cells() == before
    (attempt,) = store.attempts(claim.id)
    assert (attempt.outcome, attempt.reason, attempt.seconds) == (status, "so", 2.5)
    assert (attempt.started, attempt.ended) == (1000.0, 1003.0)


def test_a_lease_runs_out_at_its_last_instant_and_not_before(store, clock):
    store.add(cells(1))
    store.claim("slow", lease=LEASE)
    clock.now += LEASE - 0.001
    assert store.claim("heir", lease=LEASE) is None
    clock.now += 0.001
    assert store.claim("heir", lease=LEASE).attempt == 2


def test_a_sign_of_life_starts_the_lease_anew(store, clock):
    store.add(cells(1))
    claim = store.claim("slow", lease=LEASE)
    clock.now += 9
    assert store.heartbeat(claim, lease=LEASE)
    clock.now += 9
    assert store.claim("heir", lease=LEASE) is None
    clock.now += 1
    # Late, but nobody wanted the cell in between.
    assert store.heartbeat(claim, lease=LEASE)
    clock.now += 10
    assert store.claim("heir", lease=LEASE) is not None
    assert not store.heartbeat(claim, lease=LEASE)


def test_pending_cells_come_before_those_of_silent_owners(store, clock):
    first, second = store.add(cells(2))
    slow = store.claim("slow", lease=1.0)
    clock.now += 100
    assert store.claim("w", lease=LEASE).id == second
    assert store.heartbeat(slow, lease=1.0)
    clock.now += 1
    assert store.claim("w", lease=LEASE).id == first


def test_only_the_cell_that_is_wanted_is_taken_from_slow_owners(store, clock):
    store.add(cells(2))
    slow = [store.claim(owner, lease=1.0) for owner in ("a", "b")]
    clock.now += 5
    assert store.claim("w", lease=LEASE).id == slow[0].id
    assert not store.finish(slow[0], "done")
    assert store.finish(slow[1], "done")


def test_a_cell_is_given_up_after_its_last_attempt_with_the_reason_of_that(store, clock):
    (id,) = store.add(cells(1))
    assert store.crash(store.claim("a", lease=LEASE), "killed by signal 9, perhaps out of memory")
    assert (only(store).status, only(store).owner) == ("pending", "")
    assert only(store).reason == "killed by signal 9, perhaps out of memory"
    store.claim("b", lease=LEASE)
    clock.now += LEASE
    assert store.claim("c", lease=LEASE).attempt == 3
    clock.now += LEASE
    assert store.claim("d", lease=LEASE) is None
    assert (only(store).status, only(store).owner) == ("failed", "c")
    assert only(store).reason == "no sign of life from c within its lease"
    rows = [(each.attempt, each.owner, each.outcome) for each in store.attempts(id)]
    assert rows == [(1, "a", "crashed"), (2, "b", "lost"), (3, "c", "lost")]
    assert store.attempts(id)[0].reason == "killed by signal 9, perhaps out of memory"


def test_cells_given_up_do_not_hide_others_whose_lease_ran_out(tmp_path, clock):
    with Store.open(tmp_path, clock=clock, max_attempts=2) as store:
        store.add(cells(2))
        store.crash(store.claim("a", lease=1.0), "died")
        store.claim("a", lease=1.0)
        store.claim("b", lease=1.0)
        clock.now += 5
        claim = store.claim("c", lease=1.0)
        assert (claim.config["seed"], claim.attempt) == (1, 2)
        assert store.counts()["failed"] == 1


def test_crashes_use_the_attempts_up_and_releases_do_not(store):
    store.add(cells(1))
    for _ in range(5):
        assert store.release(store.claim("w", lease=LEASE))
    for _ in range(3):
        assert only(store).status == "pending"
        claim = store.claim("w", lease=LEASE)
        assert store.crash((claim.id, claim.attempt), "died")
    assert (only(store).status, only(store).reason, only(store).attempt) == ("failed", "died", 8)
    outcomes = [each.outcome for each in store.attempts(only(store).id)]
    assert outcomes == ["released"] * 5 + ["crashed"] * 3


def test_a_released_attempt_is_stale_even_though_it_does_not_count(store):
    store.add(cells(1))
    old = store.claim("w", lease=LEASE)
    store.release(old)
    new = store.claim("w", lease=LEASE)
    assert not store.finish(old, "done")
    assert store.finish(new, "done")


def test_retry_gives_failed_and_diverged_cells_all_attempts_again(store):
    ids = store.add(cells(4))
    for status in ("done", "failed", "diverged"):
        store.finish(store.claim("w", lease=LEASE), status, reason="so")
    assert store.retry() == ids[1:3]
    states = [cell.status for cell in store.cells()]
    assert states == ["done", "pending", "pending", "pending"]
    for attempt in (2, 3, 4):
        claim = store.claim("w", lease=LEASE)
        assert (claim.id, claim.attempt) == (ids[1], attempt)
        store.crash(claim, "died")
    assert store.cells()[1].status == "failed"
    assert store.retry([ids[1]]) == [ids[1]]
    assert store.retry() == []


def test_retry_names_the_cell_that_cannot_be_retried_and_changes_nothing(store):
    failed, running = store.add(cells(2))
    store.finish(store.claim("w", lease=LEASE), "failed")
    store.claim("w", lease=LEASE)
    with pytest.raises(ValueError, match=f"'{running}' is running"):
        store.retry([failed, running])
    with pytest.raises(ValueError, match="'x' is not in this study"):
        store.retry([failed, "x"])
    assert store.cells()[0].status == "failed"


def test_a_cell_that_is_done_is_put_back_by_its_id_only(store):
    (done,) = store.add(cells(1))
    store.finish(store.claim("w", lease=LEASE), "done")
    assert store.retry() == []
    assert store.retry([done]) == [done]
    assert store.cells()[0].status == "pending"


def test_counts_name_every_status(store):
    assert store.counts() == dict.fromkeys(STATUSES, 0)
    store.add(cells(3))
    store.claim("w", lease=LEASE)
    assert store.counts() == dict.fromkeys(STATUSES, 0) | {"pending": 2, "running": 1}


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
def test_leases_without_an_end_or_a_length_are_refused(store, lease):
    store.add(cells(1))
    with pytest.raises(ValueError, match="lease must be a finite number of seconds above 0"):
        store.claim("w", lease=lease)
    with pytest.raises(ValueError, match="lease must be a finite number of seconds above 0"):
        store.heartbeat(store.claim("w", lease=LEASE), lease=lease)


def test_ends_that_are_none_are_refused(store, tmp_path):
    store.add(cells(1))
    claim = store.claim("w", lease=LEASE)
    with pytest.raises(ValueError, match="ends as done, diverged, failed, got 'pending'"):
        store.finish(claim, "pending")
    with pytest.raises(ValueError, match="seconds must be a finite number"):
        store.finish(claim, "done", seconds=float("nan"))
    with pytest.raises(ValueError, match="max_attempts must be at least 1, got 0"):
        Store.open(tmp_path, max_attempts=0)
    assert only(store).status == "running"


def test_all_is_kept_when_the_store_is_opened_again(tmp_path, clock):
    with Store.open(tmp_path, clock=clock) as store:
        store.add(cells(3))
        claim = store.claim("w", lease=LEASE)
        before = store.cells()
    with Store.open(tmp_path, create=False, clock=clock) as store:
        assert store.cells() == before
        assert store.finish(claim, "done")


def test_a_closed_store_says_so(tmp_path):
    store = Store.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(ValueError, match="was closed: open the store again"):
        store.counts()


def test_the_time_is_read_while_nobody_else_can_write(tmp_path):
    refused = []

    def clock() -> float:
        other = sqlite3.connect(tmp_path / "store.sqlite", timeout=0.0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            refused.append(str(error))
        other.close()
        return 0.0

    with Store.open(tmp_path, clock=clock) as store:
        store.add(cells(1))
        claim = store.claim("w", lease=LEASE)
        store.heartbeat(claim, lease=LEASE)
        store.crash(claim, "died")
        store.release(store.claim("w", lease=LEASE))
        store.finish(store.claim("w", lease=LEASE), "done")
    assert refused == ["database is locked"] * 7


def test_an_interrupted_transaction_changes_nothing(tmp_path):
    def clock() -> float:
        raise KeyboardInterrupt

    with Store.open(tmp_path, clock=clock) as store:
        store.add(cells(1))
        with pytest.raises(KeyboardInterrupt):
            store.claim("w", lease=LEASE)
        assert only(store).status == "pending"
        store.add(cells(2))


def test_the_store_waits_longer_than_sqlite_does(store, tmp_path, monkeypatch):
    monkeypatch.setattr(store_connection, "TIMEOUT", 0.05)
    monkeypatch.setattr(store_connection, "TRIES", 100)
    other = sqlite3.connect(
        tmp_path / "store.sqlite", isolation_level=None, check_same_thread=False
    )
    with Store.open(tmp_path) as impatient:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.4, other.execute, ("COMMIT",))
        timer.start()
        impatient.add(cells(1))
        timer.join()
    other.close()
    assert store.counts()["pending"] == 1


def test_a_store_that_stays_locked_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(store_connection, "TIMEOUT", 0.01)
    monkeypatch.setattr(store_connection, "TRIES", 2)
    with Store.open(tmp_path) as store:
        other = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match="is locked for") as refused:
            store.add(cells(1))
        other.close()
        assert "\n" not in str(refused.value)
        store.add(cells(1))


def test_threads_share_a_store(store):
    store.add(cells(60))
    taken: list[str] = []

    def work(owner: str) -> None:
        while (claim := store.claim(owner, lease=LEASE)) is not None:
            taken.append(claim.id)
            store.heartbeat(claim, lease=LEASE)
            store.finish(claim, "done")

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 60 == store.counts()["done"]


def test_a_call_within_a_transaction_is_refused(tmp_path):
    # As a signal handler would make one.
    def clock() -> float:
        store.add(cells(2))
        return 0.0

    with Store.open(tmp_path, clock=clock) as store:
        store.add(cells(1))
        with pytest.raises(RuntimeError, match="do not use it in signal handlers"):
            store.claim("w", lease=LEASE)
        assert store.counts()["pending"] == 1


def test_the_store_lives_in_one_file_when_closed(tmp_path):
    with Store.open(tmp_path) as store:
        store.add(cells(1))
    assert [path.name for path in Path(tmp_path).iterdir()] == ["store.sqlite"]
