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
    """Keep the study, its cells, and which code its user let it run, for workers and reports."""
    cells = {id: {**cell.labels, "seed": cell.seed} for id, cell in study.by_id.items()}
    held = {"study": study.as_dict(), "allow_code": list(allow_code), "cells": cells}
    write_json(folder / STUDY, held)


def read_study(folder: Path) -> Study:
    """The study of a folder, as it was when last run."""
    held = _held(folder)
    return parse(held["study"], allow_code=held["allow_code"], many=True)


def _held(folder: Path) -> dict[str, Any]:
    held = read_json(folder / STUDY)
    if held is None:
        raise FileNotFoundError(f"no study in {folder}: there is no {STUDY}")
    if not isinstance(held.get("study"), dict) or "allow_code" not in held:
        raise ValueError(f"{folder / STUDY} is damaged: run the study again")
    return held


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
    return put_together(store)


def put_together(store: Store) -> list[Row]:
    """Write the rows of all measured cells, and how every cell stands."""
    rows, cells = gathered(store)
    write_rows(store.folder, rows)
    write_json(store.folder / CELLS, {"cells": cells})
    return rows


def lists_cells(folder: Path) -> bool:
    """Whether the folder says what its cells are; those of early versions do not."""
    return "cells" in _held(folder)


def gathered(store: Store) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows of all measured cells, and how every cell stands; nothing is written.

    Which cells there are is what the study wrote when it was run: with other defaults another
    version of the package would count other ones.
    """
    known = {state.id: state for state in store.cells()}
    rows: list[Row] = []
    cells: list[dict[str, Any]] = []
    for id, labels in _held(store.folder)["cells"].items():
        folder, state = store.folder_of(id), known.get(id)
        if state is not None and state.status == "done" and (folder / ROWS).exists():
            rows += read_rows(folder)
        cells.append(
            {
                **labels,
                "status": "pending" if state is None else state.status,
                "reason": "" if state is None else state.reason,
                "folder": str(folder.relative_to(store.folder)),
            }
        )
    return rows, cells
