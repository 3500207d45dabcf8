"""The result of a training run, in memory and in its folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from calibrant.data import Split, with_soft_labels
from calibrant.data.splits import ROLES
from calibrant.deprecated import Renamed
from calibrant.predictions import Predictions
from calibrant.training import checkpoint
from calibrant.training.folder import (
    HISTORY,
    PROBED,
    RESULT,
    WEIGHTS,
    read_history,
    sums,
    write_json,
)
from calibrant.training.loop import Loop
from calibrant.training.progress import measure_all

# Reported of the final predictions.
REPORTED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smece")
# Test images of which the record says where the valid pixels lie.
MAPPED = 2


@dataclass(frozen=True)
class Trained:
    """The result of a training run.

    Attributes:
        model: with its final weights, in evaluation mode.
        history: metrics of each epoch.
        val: final predictions of the validation data, for choices and calibrators.
        test: final predictions of the test data.
        record: metrics of both, what each split was used for, and what happened during training.
        records: measurements of the probe, if there was one.
    """

    readings = Renamed()

    model: nn.Module
    history: list[dict[str, Any]]
    val: Predictions
    test: Predictions
    record: dict[str, Any]
    records: list[dict[str, float]]


def record_of(loop: Loop, val: Predictions, test: Predictions) -> dict[str, Any]:
    """Metrics of the final predictions, and what each split was used for."""
    progress, splits = loop.progress, loop.splits
    metrics = {"val": measure_all(val, REPORTED), "test": measure_all(test, REPORTED)}
    if splits.test.posterior is not None:
        metrics["test against its posterior"] = measure_all(
            with_soft_labels(test, splits.test.posterior), REPORTED
        )
    pixels = pixel_runs(splits.test, splits.ignore_index) if splits.test.labels.ndim == 3 else None
    return {
        **({} if pixels is None else {"pixels": pixels}),
        "epochs": progress.epoch,
        "best_epoch": None if progress.best is None else progress.best["epoch"],
        "best_average": None if progress.best is None else progress.best["average"],
        "class_counts": splits.class_counts.tolist(),
        "class_names": list(splits.class_names) or None,
        "examples": {role: len(getattr(splits, role) or ()) for role in ROLES},
        "roles": ROLES,
        "metrics": metrics,
    }


def final_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Test metrics, as a row that follows those of the epochs."""
    found = {f"test_{name}": value for name, value in record["metrics"]["test"].items()}
    return {"epoch": record["epochs"], **found}


def pixel_runs(split: Split, ignore_index: int | None) -> dict[str, Any]:
    """Size of the images; of the first ones, lengths of valid and ignored stretches in turn."""
    runs = []
    for labels in split.labels[:MAPPED]:
        counts = (labels != ignore_index).flatten().numpy()
        edges = np.flatnonzero(np.diff(counts, prepend=True))
        runs.append(np.diff(edges, prepend=0, append=len(counts)).tolist())
    return {"shape": list(split.labels.shape[1:]), "runs": runs}


def write_histories(folder: Path, loop: Loop) -> None:
    """Write the metrics of the epochs and the records of the probe so far."""
    for name, history in ((HISTORY, loop.progress.history), (PROBED, loop.progress.records)):
        if history:
            checkpoint.write(
                folder / name, "".join(f"{json.dumps(each)}\n" for each in history).encode()
            )


def write_finished(
    folder: Path, loop: Loop, val: Predictions, test: Predictions, record: dict[str, Any]
) -> None:
    """Write all files of a finished run; the record, with checksums of the rest, is last."""
    write_histories(folder, loop)
    checkpoint.write(folder / WEIGHTS, checkpoint.encoded(loop.model.state_dict()))
    for name, predictions in (("val.npz", val), ("test.npz", test)):
        needed = predictions.logits.numel() * predictions.logits.element_size()
        with checkpoint.room_for(folder / name, needed):
            predictions.save(folder / name)
    names = [HISTORY, WEIGHTS, "val.npz", "test.npz"]
    files = sums(folder, names + [PROBED] * bool(loop.progress.records))
    write_json(folder / RESULT, {**record, "files": files})


def saved_predictions(folder: Path, split: str, result: dict[str, Any]) -> Predictions:
    """Final predictions of a split, with the names of the classes, which the record has."""
    return Predictions.load(folder / f"{split}.npz", class_names=result.get("class_names"))


def read_finished(folder: Path, result: dict[str, Any], loop: Loop) -> Trained:
    """Read a finished run back."""
    loop.model.load_state_dict(
        torch.load(folder / WEIGHTS, weights_only=True, map_location=loop.runtime.device)
    )
    val, test = (saved_predictions(folder, split, result) for split in ("val", "test"))
    records = read_history(folder, name=PROBED)
    return Trained(loop.model.eval(), read_history(folder), val, test, result, records)
