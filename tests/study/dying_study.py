"""Run a study in child processes that are killed; run as a program, since forks need a clean start.

Arguments: two folders, and a plan in JSON. In the first folder the study runs undisturbed; in the
second it is launched once for each entry of the plan: the time until SIGKILL, as a part of what the
first took, or null (no kill). Prints in JSON how each launch ended.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from sharing_runs import ended, forked
from small_studies import SMALL

from calibrant.study.folder import collect, open_runs, running
from calibrant.study.spec import parse
from calibrant.study.worker import work

STUDY = {
    **SMALL,
    "seeds": [0, 1, 2],
    "recipe": {"epochs": 8},
    "dataset": [{"name": "digits", "limit": 400}],
    "model": [{"name": "small_cnn", "width": 0.25}],
    "method": [{"name": "cross_entropy"}, {"name": "cals_alm", "margin": 4}],
}


def study(folder: Path) -> None:
    chosen = parse(STUDY)
    runs = open_runs(chosen, folder)
    with running(folder, chosen):
        runs.interrupt()
        work(folder, owner="killed")
        collect(chosen, runs)


def launch(folder: Path, kill_after: float | None) -> dict:
    started = time.monotonic()
    child = forked(lambda: study(folder))
    timer = threading.Timer(kill_after or 1e6, os.kill, (child, signal.SIGKILL))
    timer.start()
    code = ended(child)
    timer.cancel()
    timer.join()
    return {"code": code, "seconds": time.monotonic() - started}


def main() -> None:
    torch.set_num_threads(1)
    whole, folder, plan = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    # What is imported at the first step is imported once, here, and not in every child.
    warm = folder.with_name("warm")
    STUDY["recipe"]["epochs"] = 1
    study(warm)
    STUDY["recipe"]["epochs"] = 8
    first = launch(whole, None)
    kills = [None if part is None else part * first["seconds"] for part in plan]
    print(json.dumps([first, *(launch(folder, each) for each in kills)]))


if __name__ == "__main__":
    main()
