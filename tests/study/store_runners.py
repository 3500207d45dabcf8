"""Processes that share a store and die as planned; a program, since forks need a clean start.

Arguments: the name of a scene below and a folder. Prints in JSON what happened.
"""

import ctypes
import json
import os
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from calibrant.study.store import Store


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """Exit code, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def log(folder: Path, word: str) -> None:
    """One short line in one call: processes that append at once do not mix."""
    descriptor = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{word}\n".encode())
    os.close(descriptor)


def logged(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def run_all(store: Store, owner: str) -> None:
    while (claim := store.claim(owner, lease=600.0)) is not None:
        log(store.folder, f"ran {claim.id}")
        time.sleep(0.002)
        if store.finish(claim, "done", seconds=0.0):
            log(store.folder, f"done {claim.id}")


def crowd(folder: Path) -> dict:
    """Eight processes, half with the store of their parent and half with their own."""
    started = time.monotonic()
    with Store.open(folder) as store:
        store.add([{"seed": seed} for seed in range(500)])

        def alone() -> None:
            with Store.open(folder) as own:
                run_all(own, f"own {os.getpid()}")

        def shared() -> None:
            run_all(store, f"shared {os.getpid()}")

        children = [forked(alone if number % 2 else shared) for number in range(8)]
        codes = [ended(child) for child in children]
        owners = {cell.owner for cell in store.cells()}
        counts = store.counts()
    seconds = time.monotonic() - started
    return {"codes": codes, "counts": counts, "owners": len(owners), "seconds": seconds}


def birth(folder: Path) -> dict:
    """Eight processes make the same store at once, after one was killed while it made it."""

    def make() -> None:
        time.sleep(max(0.0, at - time.time()))
        with Store.open(folder / "study") as store:
            store.add([{"seed": seed} for seed in range(20)])

    def die() -> None:
        os.environ["CALIBRANT_FAULT"] = "store.drafted"
        make()

    at = 0.0
    codes = [ended(forked(die))]
    at = time.time() + 0.2
    codes += [ended(child) for child in [forked(make) for _ in range(8)]]
    with Store.open(folder / "study", create=False) as store:
        return {"codes": codes, "seeds": [cell.config["seed"] for cell in store.cells()]}


def stopped(folder: Path) -> dict:
    """A runner sleeps longer than its lease, and wakes when another has its cell."""
    with Store.open(folder) as store:
        store.add([{"seed": 0}])

        def sleeper() -> None:
            claim = store.claim("sleeper", lease=0.3)
            assert claim is not None
            os.kill(os.getpid(), signal.SIGSTOP)
            for word, said in {
                "heartbeat": store.heartbeat(claim, lease=60.0),
                "finish": store.finish(claim, "done"),
                "crash": store.crash(claim, "late"),
                "release": store.release(claim),
            }.items():
                log(folder, f"{word} {said}")

        child = forked(sleeper)
        os.waitpid(child, os.WUNTRACED)
        early = store.claim("heir", lease=60.0)
        time.sleep(0.35)
        heir = store.claim("heir", lease=60.0)
        before = store.cells()
        os.kill(child, signal.SIGCONT)
        code = ended(child)
        unchanged = store.cells() == before
        attempt = None if heir is None else heir.attempt
        finished = heir is not None and store.finish(heir, "done", seconds=1.0)
        outcomes = [each.outcome for each in store.attempts(before[0].id)]
    result = {"early": early is None, "attempt": attempt, "code": code, "unchanged": unchanged}
    return result | {"finished": finished, "outcomes": outcomes, "said": logged(folder)}


def killed(folder: Path) -> dict:
    """Runners die before, inside and after their transactions, and at random instants."""
    draw = np.random.default_rng(0)
    with Store.open(folder, max_attempts=100) as store:
        ids = store.add([{"seed": seed} for seed in range(200)])
    codes, problems = [], []

    def runner() -> None:
        with Store.open(folder, max_attempts=100) as own:
            run_all(own, f"{os.getpid()}")

    for number in range(30):
        stage = ("before", "inside", "after", "")[number % 4]
        os.environ["CALIBRANT_FAULT"] = f"store.{stage}:{draw.integers(1, 5)}" if stage else ""
        child = forked(runner)
        os.environ["CALIBRANT_FAULT"] = ""
        timer = threading.Timer(draw.uniform(0.001, 0.02), os.kill, (child, signal.SIGKILL))
        if not stage:
            timer.start()
        codes.append(ended(child))
        timer.cancel()
        problems += damages(folder / "store.sqlite")
        with Store.open(folder, max_attempts=100) as store:
            assert [cell.id for cell in store.cells()] == ids
            for cell in store.cells():
                if cell.status == "running":
                    assert cell.owner == str(child)
                    assert store.crash((cell.id, cell.attempt), "killed by signal 9")
    codes.append(ended(forked(runner)))
    with Store.open(folder) as store:
        counts = store.counts()
        tries = [len(store.attempts(id)) for id in ids]
    result = {"codes": codes, "problems": problems, "counts": counts, "tries": tries}
    return result | {"log": logged(folder)}


def damages(path: Path) -> list[str]:
    """What SQLite or the two tables disagree about."""
    handle = sqlite3.connect(path)
    found = [row[0] for row in handle.execute("PRAGMA integrity_check") if row[0] != "ok"]
    query = """
        SELECT cells.id FROM cells LEFT JOIN attempts USING (id, attempt)
        WHERE cells.attempt > 0 AND (outcome IS NULL OR (status = 'running') <> (ended IS NULL))
    """
    found += [f"cell {row[0]} and its attempts differ" for row in handle.execute(query)]
    handle.close()
    return found


def heirs(folder: Path) -> dict:
    """A child goes on with its parent's store after the parent has gone, while others come."""
    with Store.open(folder) as store:
        store.add([{"seed": seed} for seed in range(40)])
        assert store.claim("parent", lease=600.0) is not None

        def child() -> None:
            inherited = [os.path.realpath(f"/proc/self/fd/{each}") for each in range(64)]
            log(folder, f"inherited {sum('store.sqlite' in each for each in inherited)}")
            for _ in range(10):
                claim = store.claim("child", lease=600.0)
                assert claim is not None
                time.sleep(0.02)
                assert store.finish(claim, "done")

        def newcomer() -> None:
            with Store.open(folder) as own:
                claim = own.claim("newcomer", lease=600.0)
                assert claim is not None
                assert own.finish(claim, "done")

        going_on = forked(child)
    # Each newcomer is alone or not, and tidies the journal up if it believes to be.
    codes = [ended(forked(newcomer)) for _ in range(15)]
    codes.append(ended(going_on))
    problems = damages(folder / "store.sqlite")
    with Store.open(folder) as store:
        result = {"codes": codes, "counts": store.counts(), "problems": problems}
    return result | {"log": logged(folder)}


def hidden(folder: Path) -> dict:
    """A fork that Python does not see."""
    with Store.open(folder) as store:
        store.add([{"seed": 0}])
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            try:
                store.counts()
            except RuntimeError as error:
                log(folder, str(error))
            os._exit(0)
        code = ended(child)
        return {"code": code, "said": logged(folder), "counts": store.counts()}


def full(folder: Path) -> dict:
    """No room for more cells."""
    with Store.open(folder) as store:
        store.add([{"seed": 0}])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        kind = said = ""
        try:
            store.add([{"seed": seed, "text": "x" * 100} for seed in range(1, 5000)])
        except OSError as error:
            kind, said = type(error).__name__, str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        before = store.counts()
        store.add([{"seed": seed} for seed in range(10)])
        return {"kind": kind, "said": said, "before": before, "after": store.counts()}


def unwritable(folder: Path) -> dict:
    """A user who may read the folder only."""
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.setuid(65534)
    else:
        folder.chmod(0o555)
    said = []
    for place in (folder, folder / "new"):
        try:
            Store.open(place)
        except OSError as error:
            said.append(str(error))
    return {"said": said}


SCENES = {
    scene.__name__: scene
    for scene in (crowd, birth, stopped, killed, heirs, hidden, full, unwritable)
}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]](Path(sys.argv[2]))))
