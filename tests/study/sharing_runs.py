"""Processes that share the runs of a study and die as planned; forks need a clean start.

Arguments: the name of a scene below and a folder. Prints in JSON what happened.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from calibrant.study.place import check_place
from calibrant.study.runs import Claim, Runs


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


def finish(claim: Claim, seconds: float = 0.0) -> None:
    """What a training and its measuring leave, then the record of the attempt."""
    for name in ("result.json", "measured.json"):
        (claim.folder / name).write_text("{}\n")
    claim.end("done", seconds=seconds)


def run_all(runs: Runs, owner: str) -> None:
    while (claim := runs.claim(owner)) is not None:
        log(runs.folder, f"ran {claim.id}")
        time.sleep(0.002)
        finish(claim)
        log(runs.folder, f"done {claim.id}")


def ids(number: int) -> list[str]:
    return [f"{place:016x}" for place in range(number)]


def crowd(folder: Path) -> dict:
    """Eight processes over 500 runs, and one that only looks."""
    runs = Runs(folder, ids(500))

    def look() -> None:
        while runs.counts()["done"] < 500:
            pass

    children = [forked(lambda: run_all(runs, f"{os.getpid()}")) for _ in range(8)]
    children.append(forked(look))
    codes = [ended(child) for child in children]
    # Looking holds a lock for an instant, in which a worker may pass a run by.
    run_all(runs, "last")
    owners = {each.owner for state in runs.states() for each in state.attempts}
    return {"codes": codes, "counts": runs.counts(), "owners": len(owners)}


def stopped(folder: Path) -> dict:
    """A suspended worker keeps its run, whatever the clock says; the next one is taken."""
    runs = Runs(folder, ids(2))

    def sleeper() -> None:
        claim = runs.claim("sleeper")
        os.kill(os.getpid(), signal.SIGSTOP)
        finish(claim)

    child = forked(sleeper)
    os.waitpid(child, os.WUNTRACED)
    # A jump of the clock by an hour.
    clock, time.time = time.time, lambda: clock() + 3600.0
    states = [state.status for state in runs.states()]
    other = runs.claim("other")
    third = runs.claim("third")
    os.kill(child, signal.SIGCONT)
    code = ended(child)
    finish(other)
    outcomes = [[each.outcome for each in state.attempts] for state in runs.states()]
    result = {"states": states, "code": code, "outcomes": outcomes, "other": other.id}
    return result | {"third": third is None, "counts": runs.counts()}


def killed(folder: Path) -> dict:
    """Workers die around and inside every write of a record, and at random instants."""
    draw = np.random.default_rng(0)
    runs = Runs(folder, ids(200))
    codes = []
    for number in range(30):
        stage = ("before", "inside", "drafted", "after", "")[number % 5]
        os.environ["CALIBRANT_FAULT"] = f"attempts.{stage}:{draw.integers(1, 5)}" if stage else ""
        child = forked(lambda: run_all(runs, f"{os.getpid()}"))
        os.environ["CALIBRANT_FAULT"] = ""
        timer = threading.Timer(draw.uniform(0.001, 0.02), os.kill, (child, signal.SIGKILL))
        if not stage:
            timer.start()
        codes.append(ended(child))
        timer.cancel()
        assert runs.counts()["running"] == 0
        runs.interrupt()
    codes.append(ended(forked(lambda: run_all(runs, f"{os.getpid()}"))))
    tries = [len(state.attempts) for state in runs.states()]
    drafts = [path.name for path in folder.rglob(".*")]
    lines = (folder / "log").read_text().splitlines()
    result = {"codes": codes, "counts": runs.counts(), "tries": tries, "drafts": drafts}
    return result | {"log": lines}


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
            check_place(place, create=True)
        except OSError as error:
            said.append(str(error))
    return {"said": said, "counts": Runs(folder, ids(1)).counts()}


SCENES = {scene.__name__: scene for scene in (crowd, stopped, killed, unwritable)}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]](Path(sys.argv[2]))))
