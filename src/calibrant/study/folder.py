"""The folder of a study: its specification, its runs, and the rows of all of them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrant.files.locks import BusyError, FileLock
from calibrant.study.cell import measure, rows_of
from calibrant.study.grid import Study
from calibrant.study.place import check_place
from calibrant.study.rows import Rows, write_rows
from calibrant.study.runs import Runs
from calibrant.study.spec import parse
from calibrant.training.folder import LOCK, read_json, write_json

STUDY, CELLS = "study.json", "cells.json"
# Seconds to wait for a process that writes the specification, which takes an instant.
PATIENCE = 60.0


def write_study(folder: Path, study: Study) -> None:
    """Write the specification and the list of runs, for workers and reports.

    Which code the study may run is not in it: a folder may come from anybody.
    """
    cells = {id: {**cell.labels, "seed": cell.seed} for id, cell in study.by_id.items()}
    write_json(folder / STUDY, {"study": study.as_dict(), "cells": cells})


def read_study(folder: Path, *, allow_code: Sequence[str] = ()) -> Study:
    """The study of a folder, as it was when last run, with the code that this process allows."""
    return parse(_held(folder)["study"], allow_code=allow_code, many=True)


@contextmanager
def running(folder: Path, study: Study | None = None) -> Iterator[bool]:
    """Keep the specification of a study unchanged while its runs are trained.

    All who train share the lock of the study's folder. A new specification is written only by a
    process that has the lock alone. A worker has no `study`, and takes what is there. Yields
    whether nobody else trained runs of the study when it began.

    Raises:
        ValueError: the folder holds a study of another name, or one that differs is being run.
    """
    with FileLock(folder / LOCK) as lock:
        alone = study is not None and lock.acquire()
        if alone and study is not None:
            name = _held(folder)["study"].get("name") if (folder / STUDY).exists() else study.name
            if name != study.name:
                raise ValueError(
                    f"{folder} holds the study {name!r}, not {study.name!r}: choose another folder"
                )
            write_study(folder, study)
        if not lock.acquire(shared=True, seconds=PATIENCE):
            raise BusyError(f"another process has been writing {folder / STUDY} for a minute")
        if study is not None and _held(folder)["study"] != json.loads(json.dumps(study.as_dict())):
            raise BusyError(
                f"{folder} is running a study with other settings: wait until it ends, or choose "
                "another folder"
            )
        yield alone


def open_runs(study: Study, folder: Path) -> Runs:
    """The runs of a study in a folder that can hold one, which is made if there is none."""
    check_place(folder, create=True)
    return Runs(folder, study.by_id)


def saved_runs(folder: Path) -> Runs:
    """The runs of the study in a folder; nothing is written.

    Which runs there are is what the study wrote when it began: with other defaults another
    version of the package would count other ones.
    """
    return Runs(folder, _cells(folder))


def _held(folder: Path) -> dict[str, Any]:
    held = read_json(folder / STUDY)
    if held is None:
        raise FileNotFoundError(f"no study in {folder}: there is no {STUDY}")
    if not isinstance(held.get("study"), dict):
        raise ValueError(f"{folder / STUDY} is damaged: re-run the study")
    return held


def _cells(folder: Path) -> dict[str, Any]:
    cells = _held(folder).get("cells")
    if not isinstance(cells, dict) or not all(isinstance(each, dict) for each in cells.values()):
        raise ValueError(f"{folder / STUDY} does not list its runs: re-run the study")
    return cells


def collect(study: Study, runs: Runs) -> Rows:
    """Put the rows of all finished runs together, and record how every run ended.

    Rows that were made with other calibrators, metrics or labels, or that have changed since, are
    made again.
    """
    for cell, state in zip(study.by_id.values(), runs.states(), strict=True):
        if state.status == "done":
            measure(cell, study, runs.folder_of(state.id))
    return put_together(runs.folder)


def put_together(folder: Path) -> Rows:
    """Write the rows of all measured runs, and the status of every run."""
    rows, cells = gathered(folder)
    write_rows(folder, rows)
    write_json(folder / CELLS, {"cells": cells})
    return rows


def lists_cells(folder: Path) -> bool:
    """Whether the folder says what its runs are; those of early versions do not."""
    return "cells" in _held(folder)


def gathered(folder: Path) -> tuple[Rows, list[dict[str, Any]]]:
    """Rows of all measured runs, and the status of every run; nothing is written."""
    rows = Rows()
    cells: list[dict[str, Any]] = []
    runs, labels = saved_runs(folder), _cells(folder)
    for state in runs.states():
        own = runs.folder_of(state.id)
        if state.status == "done":
            rows += rows_of(own)
        standing = {"status": state.status, "reason": state.reason}
        cells.append({**labels[state.id], **standing, "folder": str(own.relative_to(folder))})
    return rows, cells
