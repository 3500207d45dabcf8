"""One run of a study: train it, keep its predictions, measure them."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from calibrant.data import shifted
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.study.grid import Cell, Study
from calibrant.study.rows import MEASURED, ROWS, TABLE, Row, measured_rows, read_rows, write_rows
from calibrant.training import Trained, train
from calibrant.training.building import built
from calibrant.training.folder import (
    CONFIG,
    WEIGHTS,
    DriftError,
    read_json,
    read_result,
    sums,
    write_json,
)
from calibrant.training.loop import Loop
from calibrant.training.predict import predict
from calibrant.training.results import saved_predictions

# As many as the command line takes.
MAX_THREADS = 1024


def run_cell(
    cell: Cell,
    study: Study,
    folder: Path,
    *,
    locked: bool = False,
    log: Sequence[str] = (),
    on_step: Callable[[Loop], None] = lambda loop: None,
) -> Trained:
    """Train a run in its folder, resumed from its last checkpoint, and write its rows.

    Changed calibrators, metrics or labels of the study change the rows, not the run.
    `locked` says that the caller holds the lock of the folder; `log` is that of `train`.
    """
    config, parts = cell.config(), cell.parts()
    splits, model, method = built(**parts, seed=cell.seed)
    try:
        with _threads_of(folder):
            trained = train(
                model,
                method,
                splits,
                cell.recipe,
                seed=cell.seed,
                folder=folder,
                locked=locked,
                config={f"{part}.{name}": v for part in parts for name, v in parts[part].items()},
                probe=config.get("probe"),
                log=log,
                name=f"{study.name}, {cell.label}",
                on_step=on_step,
            )
    except DriftError as error:
        raise ValueError(f"{error.problem}: remove that folder and give --retry") from error
    measure(cell, study, folder)
    return trained


@contextmanager
def _threads_of(folder: Path) -> Iterator[None]:
    """Keep the number of threads that a run was begun with: others sum in another order."""
    ours = torch.get_num_threads()
    threads = (read_json(folder / CONFIG) or {}).get("threads", ours)
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"{folder / CONFIG}: threads must be from 1 to {MAX_THREADS}")
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(ours)


def measure(cell: Cell, study: Study, folder: Path) -> None:
    """Write the rows of a trained run, unless they are there already."""
    made_with = _made_with(cell, study, folder)
    # A damaged record is written again.
    with suppress(ValueError):
        if read_json(folder / MEASURED) == _record(folder, made_with):
            return
    result = read_result(folder) or {}
    val, test = (saved_predictions(folder, split, result) for split in ("val", "test"))
    # Small validation sets make calibrators and metrics warn in every run.
    with without_warnings():
        rows = measured_rows(
            cell.labels,
            cell.seed,
            val,
            test,
            calibrators=study.calibrators,
            names=study.metrics,
            resamples=study.resamples,
            counts=result["class_counts"],
            shifted=_shifted(cell, study, folder),
        )
    write_measured(folder, rows, made_with)


def write_measured(folder: Path, rows: Sequence[Row], made_with: Any) -> None:
    """Write the rows of a run, then the record with their checksums."""
    write_rows(folder, rows)
    write_json(folder / MEASURED, _record(folder, made_with))


def _record(folder: Path, made_with: Any) -> dict[str, Any]:
    """What `measured.json` holds: what the rows were made with, and their checksums."""
    return {"made_with": made_with, "files": sums(folder, (ROWS, TABLE))}


def rows_of(folder: Path) -> list[Row]:
    """Rows of a measured run; an error if they have changed since."""
    held: dict[str, Any] = {}
    with suppress(ValueError):
        held = read_json(folder / MEASURED, summed=True) or {}
    if held.get("files") != sums(folder, (ROWS, TABLE)):
        raise ValueError(
            f"{folder / ROWS} has changed since it was written, or has no checksum: re-run the "
            "study, which measures it again and trains nothing"
        )
    return read_rows(folder)


def _shifted(cell: Cell, study: Study, folder: Path) -> dict[str, Predictions]:
    """Predictions of the trained network for shifted test data."""
    if not study.shifts:
        return {}
    splits, model, _ = built(**cell.parts(), seed=cell.seed)
    model.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True, map_location="cpu"))
    return {
        name: predict(model, shifted(splits.test, name), ignore_index=splits.ignore_index)
        for name in study.shifts
    }


def _made_with(cell: Cell, study: Study, folder: Path) -> Any:
    """The settings that determine the rows."""
    files = (read_result(folder) or {})["files"]
    given = [cell.labels, cell.seed, study.calibrators, study.metrics, study.resamples, files]
    given += [study.shifts] if study.shifts else []
    return json.loads(json.dumps(given))
