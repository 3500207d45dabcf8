"""Readings of probes in studies: kept as a table, and shown as correlations and figures."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.pages import table
from calibrant.curvature import correlations
from calibrant.report import margin_figure, save, scatter_figure, sharpness_figure

# Pearson correlation of ECE and Gauss-Newton sharpness, on training and on test data, as published
# in arXiv 2604.20614 for the same network on 32x32 images.
PAPER = {
    "gd": (0.83, 0.96),
    "sgd": (0.84, 0.97),
    "adamw": (0.72, 0.15),
    "muon": (0.63, -0.10),
    "sam": (0.92, 0.98),
}
HEAD = ("optimizer", "runs", "Pearson, train", "Spearman, train", "published")
HEAD += ("Pearson, test", "Spearman, test", "published")
ABOUT = """Correlation of ECE with Gauss-Newton sharpness along a run, from its first record
to its last; mean over learning rates and seeds, with its 95 % interval. "Published" is the value
of arXiv 2604.20614 for this network on larger images."""

# Of the last reading; plain descent alone has an edge.
LAST = ("train_accuracy", "train_ece", "test_ece", "gauss_newton", "hessian", "edge")

Run = list[dict[str, float]]


def readings(folder: Path, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every reading of every finished cell, with where it belongs."""
    found = []
    for cell in cells:
        path = folder / cell["folder"] / "probe.jsonl"
        if cell["status"] == "done" and path.exists():
            where = {key: cell[key] for key in ("dataset", "model", "optimizer", "method", "seed")}
            found += [{**where, **json.loads(line)} for line in path.read_text().splitlines()]
    return found


def section(kept: Path, page: Path, name: str) -> list[str]:
    """The correlations and figures of a study that had a probe; nothing of another."""
    path = kept / f"{name}-probe.csv"
    if not path.exists():
        return []
    runs = _runs(path)
    families: dict[str, list[Run]] = defaultdict(list)
    for (optimizer, _), rows in runs.items():
        families[optimizer.split()[0]].append(rows)
    parts = [ABOUT, table(HEAD, [_line(family, held) for family, held in families.items()])]
    parts += ["The last record of each run, mean over the seeds:", _last(runs)]
    first = {optimizer: rows for (optimizer, seed), rows in runs.items() if seed == "0"}
    shown = {label: rows for label, rows in first.items() if label in _middle(list(first))}
    for kind, said, figure in (
        ("sharpness", "ECE and sharpness along training, first seed", sharpness_figure(shown)),
        ("scatter", "ECE against sharpness, first seed", scatter_figure(shown)),
        ("margins", "margins along training, first seed", margin_figure(shown)),
    ):
        drawn = page.with_name(f"{kind}-{name}.png")
        save(figure, drawn)
        parts.append(f"![{said}]({drawn.name})")
    return parts


def _runs(path: Path) -> dict[tuple[str, str], Run]:
    """Readings by optimizer and seed."""
    words = ("dataset", "model", "optimizer", "method", "seed")
    runs: dict[tuple[str, str], Run] = defaultdict(list)
    with path.open() as handle:
        for row in csv.DictReader(handle):
            numbers = {
                key: float(value) for key, value in row.items() if key not in words and value
            }
            runs[row["optimizer"], row["seed"]].append(numbers)
    return runs


def _line(family: str, runs: list[Run]) -> list[str]:
    cells = [family, str(len(runs))]
    for place, split in enumerate(("train", "test")):
        for kind in ("pearson", "spearman"):
            found = correlations(runs, f"{split}_ece", "gauss_newton", kind=kind).mean
            cells.append(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
        cells.append(f"{PAPER[family][place]:.2f}" if family in PAPER else "-")
    return cells


def _last(runs: dict[tuple[str, str], Run]) -> str:
    """What was read last, of each optimizer."""
    ends: dict[str, list[dict[str, float]]] = defaultdict(list)
    for (optimizer, _), rows in runs.items():
        ends[optimizer].append(rows[-1])
    lines = [
        [name, *(f"{mean(each[key] for each in held):.4g}" for key in LAST if key in held[0])]
        for name, held in ends.items()
    ]
    head = ["optimizer", *(key.replace("_", " ") for key in LAST)]
    return table(head, [line + ["-"] * (len(head) - len(line)) for line in lines])


def _middle(labels: list[str]) -> set[str]:
    """Of the labels that begin with the same word, the one in the middle."""
    families: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        families[label.split()[0]].append(label)
    return {held[len(held) // 2] for held in families.values()}
