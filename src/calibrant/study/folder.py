"""The folder of a study: the study itself, its cells, and the rows of all of them."""

from pathlib import Path
from typing import Any

from calibrant.study.cell import measure
from calibrant.study.grid import Study
from calibrant.study.rows import ROWS, Row, read_rows, write_rows
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
    for cell, state in zip(study.by_id.values(), states(study, store), strict=True):
        if state.status == "done":
            measure(cell, study, store.folder_of(state.id))
    rows, cells = gathered(study, store)
    write_rows(store.folder, rows)
    write_json(store.folder / CELLS, {"cells": cells})
    return rows


def gathered(study: Study, store: Store) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows of all measured cells, and how every cell stands; nothing is written."""
    rows: list[Row] = []
    cells: list[dict[str, Any]] = []
    for cell, state in zip(study.by_id.values(), states(study, store), strict=True):
        folder = store.folder_of(state.id)
        if state.status == "done" and (folder / ROWS).exists():
            rows += read_rows(folder)
        cells.append(
            {
                **cell.labels,
                "seed": cell.seed,
                "status": state.status,
                "reason": state.reason,
                "folder": str(folder.relative_to(store.folder)),
            }
        )
    return rows, cells
