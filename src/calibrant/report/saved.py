"""A study as its folder holds it: what every page, table and chart of it is made from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.predictions import Predictions
from calibrant.report.display_names import display_name, display_names
from calibrant.training.folder import PROBED, RESULT, damaged, read_history, read_json, read_lines
from calibrant.training.results import saved_predictions

STUDY, CELLS, ROWS = "study.json", "cells.json", "rows.jsonl"
# The choices of a training, from the outermost axis of the grid to the innermost.
PARTS = ("dataset", "model", "optimizer", "method")
# Types of the values of a run and of a row.
CELL_TYPES = {**dict.fromkeys((*PARTS, "status", "reason", "folder"), str), "seed": int}
ROW_TYPES: dict[str, Any] = dict.fromkeys((*PARTS, "calibrator", "split", "metric"), str)
ROW_TYPES |= {"seed": int, **dict.fromkeys(("value", "low", "high"), int | float | None)}

# An absolute path; a report is read on other machines, and its last part is enough.
PATH = re.compile(r"(?<![\w./<])(?:file://|~|[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+(?=[^\s/\\])")

Row = dict[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class SavedCell:
    """One run of a study (a cell of its grid): done, failed, diverged, pending or running.

    `labels` are dataset, model, optimizer and method; `reason` says why it failed or diverged.
    """

    labels: dict[str, str]
    seed: int
    status: str
    reason: str
    folder: Path

    @property
    def done(self) -> bool:
        """Whether it has results."""
        return self.status == "done"

    @property
    def label(self) -> str:
        """The run in one line."""
        return f"{', '.join(self.labels[part] for part in PARTS)}, seed {self.seed}"

    @cached_property
    def record(self) -> Record | None:
        """The record of the finished run; None before.

        It has the examples and roles of the splits, metrics, and the identity of the run:
        settings, fingerprint of the data, versions.
        """
        return read_json(self.folder / RESULT) if self.done else None

    @cached_property
    def history(self) -> list[Row]:
        """One row for each epoch so far."""
        return read_history(self.folder)

    @cached_property
    def probe(self) -> list[Row]:
        """One row for each reading of a probe so far."""
        return read_history(self.folder, name=PROBED)

    @property
    def val(self) -> Predictions | None:
        """Final predictions of the validation data, which are not kept in memory; None before."""
        return self._predictions("val")

    @property
    def test(self) -> Predictions | None:
        """Final predictions of the test data, which are not kept in memory; None before."""
        return self._predictions("test")

    def _predictions(self, split: str) -> Predictions | None:
        if not self.done or not (self.folder / f"{split}.npz").exists():
            return None
        return saved_predictions(self.folder, split, self.record or {})


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that are compared with each other: one section of a report.

    Attributes:
        labels: what all runs share: dataset, model, and optimizer unless that is compared.
        axis: what is compared: "method", or "optimizer" where a study has one method only.
        cells: all runs in the order of the study, finished or not.
        rows: rows of the finished runs, of all splits.
    """

    labels: dict[str, str]
    axis: str
    cells: tuple[SavedCell, ...]
    rows: list[Row]

    @property
    def title(self) -> str:
        """What its cells share, in one line."""
        return ", ".join(self.labels.values())

    @property
    def names(self) -> list[str]:
        """What is compared, in the order of the study: labels of methods, or of optimizers."""
        return list(dict.fromkeys(cell.labels[self.axis] for cell in self.cells))


@dataclass(frozen=True, eq=False)
class Saved:
    """A study; `study` holds its tables, `rows` every metric of every finished run as a dict."""

    folder: Path
    name: str
    about: str
    study: Record
    cells: tuple[SavedCell, ...]
    rows: list[Row]

    @property
    def axis(self) -> str:
        """What is compared: optimizers where there are several and one method, else methods."""
        optimizers, methods = ({cell.labels[part] for cell in self.cells} for part in PARTS[2:])
        return "optimizer" if len(optimizers) > 1 and len(methods) == 1 else "method"

    @cached_property
    def plain_names(self) -> frozenset[str]:
        """Names of the methods that are cross entropy and nothing else."""
        return frozenset(
            display_name(each.get("label", ""))
            for each in self.study.get("method", [])
            if each.get("name") == "cross_entropy" and set(each) <= {"name", "label"}
        )

    def groups(self) -> list[Group]:
        """The sections of a report, in the order of the study."""
        shared = [part for part in PARTS[:3] if part != self.axis]
        cells: dict[tuple[str, ...], list[SavedCell]] = {}
        for cell in self.cells:
            cells.setdefault(tuple(cell.labels[part] for part in shared), []).append(cell)
        rows: dict[tuple[str, ...], list[Row]] = {key: [] for key in cells}
        for row in self.rows:
            rows.setdefault(tuple(row[part] for part in shared), []).append(row)
        return [
            Group(dict(zip(shared, key, strict=True)), self.axis, tuple(own), rows[key])
            for key, own in cells.items()
        ]


def read_saved(folder: str | Path) -> Saved:
    """Read the folder of a study; files of its runs are read when asked for."""
    where = Path(folder)
    if not (where / STUDY).exists():
        raise FileNotFoundError(f"no study in {where}: run one with calibrant study")
    for name in (CELLS, ROWS):
        if not (where / name).exists():
            advice = "re-run the same command to resume"
            raise FileNotFoundError(f"the study in {where} has no {name}: {advice}")
    held = (read_json(where / CELLS) or {}).get("cells")
    if not isinstance(held, list):
        raise damaged(where / CELLS)
    return saved_from(where, held, _rows(where / ROWS))


def saved_from(where: Path, cells: Iterable[Any], rows: list[Row]) -> Saved:
    """A study from what `cells.json` and `rows.jsonl` would hold, also if it is still running."""
    study = (read_json(where / STUDY) or {}).get("study")
    if not isinstance(study, dict) or not isinstance(study.get("name"), str):
        raise damaged(where / STUDY)
    held = tuple(_cell(where, each) for each in cells)
    return _named(Saved(where, study["name"], str(study.get("about", "")), study, held, rows))


def _named(saved: Saved) -> Saved:
    """The study with plain names in place of its labels."""
    names = {
        part: display_names({cell.labels[part]: None for cell in saved.cells}) for part in PARTS
    }

    def plain(labels: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **labels,
            **{part: own.get(labels[part], labels[part]) for part, own in names.items()},
        }

    cells = tuple(replace(cell, labels=plain(cell.labels)) for cell in saved.cells)
    return replace(saved, cells=cells, rows=[plain(row) for row in saved.rows])


def _cell(where: Path, held: Any) -> SavedCell:
    if not _is_typed(held, CELL_TYPES):
        raise damaged(where / CELLS)
    folder = Path(held["folder"])
    if folder.is_absolute() or ".." in folder.parts:
        raise ValueError(f"{where / CELLS} names a folder outside of the study: {folder}")
    labels = {part: held[part] for part in PARTS}
    reason = without_folders(held["reason"])
    return SavedCell(labels, held["seed"], held["status"], reason, where / folder)


def without_folders(text: str) -> str:
    """Text whose absolute paths have only their last part.

    Examples:
        >>> without_folders("no room for /home/me/runs/a/weights.pt")
        'no room for …/weights.pt'
    """
    return PATH.sub("…/", text)


def _rows(path: Path) -> list[Row]:
    found = read_lines(path)
    for place, row in enumerate(found, 1):
        if not _is_typed(row, ROW_TYPES):
            raise damaged(f"{path}:{place}")
    return found


def _is_typed(held: Any, types: Mapping[str, Any]) -> bool:
    return isinstance(held, dict) and all(
        name in held and isinstance(held[name], kind) for name, kind in types.items()
    )
