"""Train in child processes that die as planned; run as a program, since forks need a clean start.

Arguments: a folder, a method, and a plan in JSON: one object for each launch, with `kill_after`
(time until SIGKILL, as a part of what a whole training takes just before), `fault` (an instant by
name) or neither (to the end). Prints in JSON how each launch ended, and which files a launch left
that cannot be read.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from calibrant import data, methods, models
from calibrant.data import Augmentation
from calibrant.predictions import Predictions
from calibrant.training import Recipe, checkpoint, run, train

RECIPE = Recipe(
    epochs=20, batch=128, lr=0.05, average=0.9, augmentation=Augmentation(crop=1), stop_on="nll"
)
# Slow methods do what makes them slow in some steps only; which ones is part of their state.
SETTINGS = {"calmo": {"every": 4}, "gamma_net": {"every": 3}}


def trained(folder: Path | None, method: str, splits: data.Splits, recipe: Recipe, **extras):
    network = models.build(
        "small_cnn", classes=splits.classes, shape=splits.shape, seed=1, width=0.25
    )
    # Batch norm has running statistics; with dropout the random state matters, too.
    model = torch.nn.Sequential(torch.nn.Dropout(0.2), network)
    learner = methods.build(method, classes=splits.classes, **SETTINGS.get(method, {}))
    return train(model, learner, splits, recipe, folder=folder, **extras)


def launch(folder: Path, method: str, splits: data.Splits, step: dict) -> dict:
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.environ["CALIBRANT_FAULT"] = step.get("fault", "")
        code = 1
        try:
            trained(folder, method, splits, RECIPE, save_every=step.get("save_every", 60.0))
            code = 0
        finally:
            os._exit(code)
    timer = threading.Timer(step.get("kill_after", 1e6), os.kill, (child, signal.SIGKILL))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    timer.join()
    ended = "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    seconds = time.monotonic() - started
    return {"ended": ended, "seconds": seconds, "unreadable": unreadable(folder)}


def unreadable(folder: Path) -> list[str]:
    """Files under a final name that are not whole; drafts have names of their own."""
    readers = {
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        ".npz": Predictions.load,
        ".pt": lambda path: torch.load(path, weights_only=True),
    }
    bad = []
    for path in sorted(folder.glob("[!.]*")):
        read = readers.get(path.suffix, lambda path: None)
        try:
            checkpoint.load(path) if path.name.startswith("checkpoint") else read(path)
        except Exception as error:  # any failure to read is a finding
            bad.append(f"{path.name}: {error}")
    return bad


def main() -> None:
    folder, method, plan = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    run.SAVE_LEAST = 0.0
    splits = data.load("digits", 0)
    # What is imported at the first step is imported once, here, and not in every child.
    trained(None, method, splits, replace(RECIPE, epochs=1))
    if any("kill_after" in step for step in plan):
        # Now, and here: how fast a machine is depends on what else it does.
        whole = launch(folder.with_name(f"{folder.name}-timed"), method, splits, {})["seconds"]
        plan = [
            step | {"kill_after": step["kill_after"] * whole} if "kill_after" in step else step
            for step in plan
        ]
    ends = [launch(folder, method, splits, step) for step in plan]
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
