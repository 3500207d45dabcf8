"""Keep the results of studies in the repository, and write the page that shows them.

`make results` takes what is finished in runs/ (or in the folders given) into studies/results, and
writes docs/results.md from there. Nothing is trained: `calibrant study studies/NAME.toml` does.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.pages import machine, versions
from benchmarks.probe_results import readings
from benchmarks.real_data import ROOT
from benchmarks.results_page import PAGE, PLACE, write_page
from calibrant.methods import GammaNet
from calibrant.report import gamma_figure, multiplier_figure, save
from calibrant.study.folder import read_study, saved_runs
from calibrant.study.rows import NONE, Row, read_rows

RUNS, KEPT = ROOT / "runs", ROOT / "studies" / "results"
# Kept of the history of every epoch, as means over the seeds.
MOST_EPOCHS = 200
CURVES = ("lr", "loss", "val_accuracy", "val_nll", "val_ece", "val_confidence", "val_entropy")


def main(folders: Iterable[str] = ()) -> int:
    """Keep what is finished, and write the page."""
    given = [Path(each) for each in folders]
    for folder in given or sorted(path.parent for path in RUNS.glob("*/rows.jsonl")):
        if (ROOT / "studies" / f"{read_study(folder).name}.toml").exists():
            keep(folder)
    write_page(KEPT)
    return 0


def keep(folder: Path) -> None:
    """Write the rows of a finished study, its curves and where it ran."""
    name = read_study(folder).name
    cells = json.loads((folder / "cells.json").read_text())["cells"]
    if any(cell["status"] in ("pending", "running") for cell in cells):
        print(f"{name} is not finished, left as it was", file=sys.stderr)
        return
    KEPT.mkdir(exist_ok=True)
    rows = [vars(row) for row in read_rows(folder) if _kept(row)]
    _write(KEPT / f"{name}.csv", rows)
    _write(KEPT / f"{name}-curves.csv", _curves(folder, cells))
    read = readings(folder, cells)
    if read:
        _write(KEPT / f"{name}-probe.csv", read)
    _draw(folder, name, cells)
    failed = [cell for cell in cells if cell["status"] != "done"]
    about = {
        "cells": len(cells),
        "failed": [f"{cell['dataset']}, {cell['method']}: {cell['reason']}" for cell in failed],
        "seconds": round(_seconds(folder)),
        "gammas": _learnt(folder, cells, "gamma_mean"),
        "gamma_weights": _learnt(folder, cells, "gamma_weights"),
        "machine": machine(),
        "versions": versions(),
    }
    (KEPT / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{name}: {len(rows)} rows of {len(cells)} cells")


def _learnt(folder: Path, cells: list[dict[str, Any]], what: str) -> dict[str, list[float]]:
    """A number of the last epoch, seed by seed, of each method whose history has it."""
    found: dict[str, list[float]] = defaultdict(list)
    # Datasets and methods, and what else there is more than one of.
    parts = [key for key in PLACE if len({cell[key] for cell in cells}) > 1]
    for cell in cells:
        history = _history(folder, cell)
        if history and what in history[-1]:
            found[", ".join(cell[key] for key in parts)].append(round(history[-1][what], 2))
    return found


def _history(folder: Path, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every epoch of a cell; none of one that did not finish."""
    if cell["status"] != "done":
        return []
    lines = (folder / cell["folder"] / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _kept(row: Row) -> bool:
    """Test rows; of single classes and groups of them, only before and after one temperature.

    Of validation, what a method would be chosen by.
    """
    if row.split == "val":
        return row.metric in ("nll", "ece")
    whole = row.split == "test" and ":" not in row.metric
    return row.split.startswith("test") and (whole or row.calibrator in (NONE, "temperature"))


def _seconds(folder: Path) -> float:
    """Sum of what the cells took, each in its worker."""
    return sum(state.seconds or 0.0 for state in saved_runs(folder).states())


def _curves(folder: Path, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs: dict[tuple[str, ...], list[list[dict[str, Any]]]] = defaultdict(list)
    for cell in cells:
        history = _history(folder, cell)
        if history:
            runs[tuple(cell[each] for each in PLACE)].append(history)
    found = []
    for key, histories in runs.items():
        where = dict(zip(PLACE, key, strict=True))
        length = min(map(len, histories))
        for epoch in range(0, length, max(1, length // MOST_EPOCHS)):
            means = {name: mean(history[epoch][name] for history in histories) for name in CURVES}
            found.append({**where, "epoch": epoch, **means})
    return found


def _draw(folder: Path, name: str, cells: list[dict[str, Any]]) -> None:
    """Method state of the first seed: the highest multipliers, and gammas by the usual settings."""
    histories = [(cell, _history(folder, cell)) for cell in cells if cell["seed"] == 0]
    with_multipliers = [each for each in histories if each[1] and "multipliers" in each[1][-1]]
    learnt = [each for each in histories if each[1] and "gamma_right" in each[1][-1]]
    figures: dict[str, Figure] = {}
    if with_multipliers:
        cell, history = max(with_multipliers, key=lambda each: mean(each[1][-1]["multipliers"]))
        counts = json.loads((folder / cell["folder"] / "result.json").read_text())["class_counts"]
        figures["multipliers"] = multiplier_figure(history, counts, title=_title(cell))
    if learnt:
        unusual = {each.label: _unusual(each.settings) for each in read_study(folder).method}
        # Of equals the last: with augmentation some training examples stay wrong to the end.
        cell, history = min(reversed(learnt), key=lambda each: unusual[each[0]["method"]])
        figures["gamma"] = gamma_figure(history, title=_title(cell))
    for kind, figure in figures.items():
        save(figure, PAGE.with_name(f"{kind}-{name}.png"))


def _title(cell: dict[str, Any]) -> str:
    return f"{cell['method']}: {cell['dataset']}, seed {cell['seed']}"


def _unusual(settings: Mapping[str, Any]) -> int:
    """How many settings of a gamma-net are not its defaults."""
    usual = signature(GammaNet).parameters
    return sum(key not in usual or usual[key].default != settings[key] for key in settings)


def _write(path: Path, rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> None:
    """Write a table with four digits, of the ends of intervals three: more than seeds agree on."""
    with path.open("w", newline="") as handle:
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.DictWriter(handle, names, lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({name: _short(name, value) for name, value in row.items()})


def _short(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.3g}" if name in ("low", "high") else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
