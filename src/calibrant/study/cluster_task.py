"""What a worker of a Dask cluster does: describe itself, and train one run."""

import json
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from calibrant import __version__
from calibrant.extras import need
from calibrant.study.cell import run_cell
from calibrant.study.grid import Study
from calibrant.study.rows import MEASURED, ROWS, TABLE
from calibrant.study.runs import Runs
from calibrant.study.spec import parse
from calibrant.study.worker import ERROR, CancelledError, outcome_of, run_claimed
from calibrant.training import DiskFullError
from calibrant.training.folder import CONFIG, DIVERGED, HISTORY, RESULT, WEIGHTS, code_digest
from calibrant.training.loop import Loop

# What a machine that does not share the folder sends; each is written after those before it.
TRAINED = (CONFIG, HISTORY, WEIGHTS, "val.npz", "test.npz", DIVERGED, ERROR, RESULT)
FILES = (*TRAINED, ROWS, TABLE, MEASURED)
# Id of this process: a worker that was restarted under its old address has another.
INCARNATION = secrets.token_hex(8)
# Seeds and threads belong to the process, so it trains one run at a time.
TRAINING = threading.Lock()


def versions() -> dict[str, str]:
    """What must be the same in all processes."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"calibrant": f"{__version__}+{code_digest(('.',))}", "Python": python}


def describe_worker(token: str) -> dict[str, Any]:
    """In a worker: return its versions, and what it reads in the folder of the study."""
    try:
        sees = Path(token).read_text()
    except OSError:
        sees = ""
    return {**versions(), "sees": sees}


def train_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """In a worker: train a run; returns how it ended, and its files if the folder is not shared.

    Errors are returned and never raised, so that nothing but plain values travels.
    """
    start = time.monotonic()
    if job["incarnation"] != INCARNATION:
        return {"status": "lost", "reason": "its process was killed and restarted"}
    status, reason, files = "recorded", "", {}
    try:
        if job["folder"] is None:
            with tempfile.TemporaryDirectory(prefix="calibrant-") as name:
                folder = Path(name)
                status, reason = outcome_of(lambda: _train(job, folder), folder)
                held = [folder / name for name in FILES]
                files = {path.name: path.read_bytes() for path in held if path.is_file()}
        else:
            _train(job, None)
    except CancelledError:
        status, reason = "lost", "the attempt was cancelled"
    except DiskFullError as error:
        return {"status": "full", "error": error.as_dict()}
    seconds = time.monotonic() - start
    return {"status": status, "reason": reason, "seconds": seconds, "files": files}


def _train(job: Mapping[str, Any], folder: Path | None) -> None:
    """Train in a folder of this worker's own, or claim and record the run in the study's."""
    worker = need("distributed", extra="cluster", what="a study on a Dask cluster").get_worker()

    def check_cancelled() -> None:
        # Dask cannot end a thread: it only marks the task, when it is cancelled or its client dies.
        task = worker.state.tasks.get(job["key"])
        if task is None or task.state != "executing":
            raise CancelledError

    def on_step(loop: Loop) -> None:
        check_cancelled()

    study = _study(job["study"], job["allow_code"])
    cell = study.by_id[job["id"]]
    while not TRAINING.acquire(timeout=0.5):
        check_cancelled()
    try:
        torch.set_num_threads(job["threads"])
        if folder is not None:
            run_cell(cell, study, folder, log=job["log"], on_step=on_step)
            return
        # An earlier, cancelled attempt may still hold the run: then the run is assigned again.
        claim = Runs(job["folder"], study.by_id).claim(job["key"], [job["id"]])
        if claim is not None:
            run_claimed(claim, cell, study, log=job["log"], on_step=on_step)
    finally:
        TRAINING.release()


@lru_cache(maxsize=1)
def _study(text: str, allow_code: tuple[str, ...]) -> Study:
    return parse(json.loads(text), allow_code=allow_code, many=True)
