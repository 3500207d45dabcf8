"""The folder of a small study with everything a report shows, made by hand in a second.

`small_study(folder)`: two seeds of three methods on a long-tailed set, with one failed run,
histories, a probe, and names that must be escaped wherever they are shown.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.predictions import Predictions
from calibrant.study.rows import measured_rows, write_rows

DATASET = 'blobs, "long" & <b>tailed</b>'
MODEL, OPTIMIZER = "small net", "SGD, rate 0.05"
PLAIN, FOCAL = "cross entropy", "focal 3"
UNTRUSTED = "<script>alert(\"x\")</script> 'quoted' | 50 % _a_ $b$"
REASON = 'the loss is <b>nan</b> at step 7: lower the rate of "sgd"'
# Name of the method, how much too sharp it makes the logits, and how much it disturbs them.
METHODS = {
    PLAIN: ("cross_entropy", 2.5, 0.6),
    FOCAL: ("focal", 1.1, 0.0),
    UNTRUSTED: ("cals_alm", 1.6, 1.5),
}
# Of the training examples: two classes each are frequent, middling and rare.
COUNTS = [400, 200, 60, 40, 15, 10]
METRICS = ["accuracy", "nll", "brier", "ece", "adaptive_ece"]
EPOCHS = 4


def small_study(
    folder: Path,
    *,
    methods: tuple[str, ...] = (PLAIN, FOCAL, UNTRUSTED),
    seeds: tuple[int, ...] = (0, 1),
    failed: tuple[tuple[str, int], ...] = ((UNTRUSTED, 1),),
    calibrators: tuple[str, ...] = ("temperature",),
    metrics: list[str] = METRICS,
    examples: int = 240,
) -> Path:
    """Write the files of a study, as a run leaves them, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cells, rows = [], []
    for method in methods:
        for seed in seeds:
            place = folder / "cells" / f"{len(cells):016x}"
            labels = {"dataset": DATASET, "model": MODEL, "optimizer": OPTIMIZER, "method": method}
            cell = {**labels, "seed": seed, "status": "done", "reason": ""}
            cells.append({**cell, "folder": str(place.relative_to(folder))})
            if (method, seed) in failed:
                cells[-1] |= {"status": "diverged", "reason": REASON}
                write_lines(place / "history.jsonl", history_of(method)[:1])
                continue
            val, test = (predictions_of(method, seed, split, examples) for split in (0, 1))
            write_cell(place, method, seed, val, test)
            given = {"calibrators": calibrators, "names": metrics, "resamples": 20}
            rows += measured_rows(labels, seed, val, test, **given, counts=COUNTS)
    write_rows(folder, rows)
    (folder / "cells.json").write_text(json.dumps({"cells": cells}))
    study = {
        "name": 'small <i>study</i> & "friends"',
        "about": "Two seeds of three methods </script><script>alert(1)</script>",
        "seeds": list(seeds),
        "calibrators": list(calibrators),
        "metrics": list(metrics),
        "resamples": 20,
        "recipe": {"epochs": EPOCHS},
        "probe": {"every": 10},
        "dataset": [{"name": "blobs", "label": DATASET, "long_tail": 40}],
        "model": [{"name": "mlp", "label": MODEL}],
        "optimizer": [{"name": "sgd", "label": OPTIMIZER, "lr": 0.05}],
        "method": [{"name": METHODS[method][0], "label": method} for method in methods],
    }
    (folder / "study.json").write_text(json.dumps({"study": study, "allow_code": []}))
    return folder


def predictions_of(method: str, seed: int, split: int, examples: int) -> Predictions:
    """Logits of one training; methods with the same seed see the same examples."""
    _, sharpness, noise = METHODS[method]
    draw = np.random.default_rng([seed, split])
    logits = 1.5 * draw.normal(size=(examples, len(COUNTS)))
    labels = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    logits += noise * np.random.default_rng([seed, split, 1]).normal(size=logits.shape)
    return Predictions((sharpness * logits).astype(np.float32), labels)


def write_cell(place: Path, method: str, seed: int, val: Predictions, test: Predictions) -> None:
    """Write what a finished training leaves in its folder, its weights aside."""
    write_lines(place / "history.jsonl", history_of(method))
    write_lines(place / "probe.jsonl", probe_of(method))
    val.save(place / "val.npz")
    test.save(place / "test.npz")
    record = {
        "class_counts": COUNTS,
        "examples": {"train": sum(COUNTS), "meta": 0, "val": len(val), "test": len(test)},
        "roles": {"train": "fits the weights", "test": "measured once, at the end"},
        "identity": {
            "dataset.name": "blobs",
            "method": METHODS[method][0],
            "seed": seed,
            "recipe.epochs": EPOCHS,
            "data": "ab" * 32,
            "torch": "2.13.0+cpu",
        },
    }
    (place / "result.json").write_text(json.dumps(record))


def history_of(method: str) -> list[dict[str, float]]:
    """A few epochs."""
    _, sharpness, _ = METHODS[method]
    return [
        {
            "epoch": epoch,
            "loss": 0.4 + 1.3 * 0.5**epoch,
            "val_accuracy": 0.7 - 0.4 * 0.5**epoch,
            "val_nll": 0.8 + 0.5**epoch / sharpness,
            "val_ece": 0.05 * sharpness * (1 - 0.5 ** (epoch + 1)),
        }
        for epoch in range(EPOCHS)
    ]


def probe_of(method: str) -> list[dict[str, float]]:
    """Three readings of a probe."""
    _, sharpness, _ = METHODS[method]
    return [
        {
            "step": step,
            "lr": 0.05,
            "edge": 40.0,
            "train_ece": 0.05,
            "test_ece": 0.06 * sharpness,
            **{f"margin_{q}": q / 50 - 1 + step / 10 for q in (0, 5, 25, 50, 75, 95)},
            "gauss_newton": 3.0 + step * sharpness,
            "hessian": 4.0 + step * sharpness,
            "batch_sharpness": 1.5 + step,
            "batch_sharpness_error": 0.1,
        }
        for step in (0, 10, 20)
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one row from each line of JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_cells(folder: Path, /, **changes: Any) -> None:
    """Change what `cells.json` says of the runs: one value for all of them, or a list of values."""
    held = json.loads((folder / "cells.json").read_text())
    for name, value in changes.items():
        for at, cell in enumerate(held["cells"]):
            cell[name] = value[at] if isinstance(value, list) else value
    (folder / "cells.json").write_text(json.dumps(held))


def write_lines(path: Path, rows: list[dict[str, float]]) -> None:
    """Write one line of JSON for each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
