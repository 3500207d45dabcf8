"""The folder of a study: the study itself, its cells, and the rows of all of them."""

from pathlib import Path
from typing import Any

from calibrant.study.cell import measure
from calibrant.study.grid import Study
from calibrant.study.rows import Row, read_rows, write_rows
from calibrant.study.spec import parse
from calibrant.study.store import CellState, Store
from calibrant.training.folder import read_json, write_json

STUDY, CELLS = "study.json", "cells.json"


def write_study(folder: Path, study: Study, *, allow_code: tuple[str, ...]) -> None:
    """Keep the study, and which code its user let it run, for workers and reports."""
    write_json(folder / STUDY, {"study": study.as_dict(), "allow_code": list(allow_code)})


def read_study(folder: Path) -> Study:
    """The study of a folder, as it was when last run."""
    held = read_json(folder / STUDY)
    if held is None:
        raise FileNotFoundError(f"no study in {folder}: there is no {STUDY}")
    return parse(held["study"], allow_code=held["allow_code"], many=True)


def states(study: Study, store: Store) -> list[CellState]:
    """Where each cell of the study stands, in its order; the store may hold others, too."""
    known = {state.id: state for state in store.cells()}
    return [known[id] for id in study.by_id]


def collect(study: Study, store: Store) -> list[Row]:
    """Put the rows of all finished cells together, and say how every cell ended.

    Rows that were made with other calibrators, metrics or labels are made again.
    """
    rows: list[Row] = []
    ended: list[dict[str, Any]] = []
    for cell, state in zip(study.by_id.values(), states(study, store), strict=True):
        folder = store.folder_of(state.id)
        if state.status == "done":
            measure(cell, study, folder)
            rows += read_rows(folder)
        ended.append(
            {
                **cell.labels,
                "seed": cell.seed,
                "status": state.status,
                "reason": state.reason,
                "folder": str(folder.relative_to(store.folder)),
            }
        )
    write_rows(store.folder, rows)
    write_json(store.folder / CELLS, {"cells": ended})
    return rows
