"""A small study, as plain values and as a file, and what two runs of one must have alike."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SMALL = {
    "name": "small",
    "seeds": [0, 1],
    "calibrators": ["temperature"],
    "metrics": ["accuracy", "nll"],
    "resamples": 20,
    "recipe": {"epochs": 2, "batch": 64},
    "dataset": [{"name": "blobs", "limit": 300}],
    "model": [{"name": "mlp", "hidden": [16]}],
    "method": [{"name": "cross_entropy"}],
}


def as_toml(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)


def write_toml(path: Path, study: dict[str, Any]) -> Path:
    path.write_text("".join(f"{key} = {as_toml(each)}\n" for key, each in study.items()))
    return path


PROMISED = ("rows.jsonl", "rows.csv", "weights.pt", "history.jsonl", "val.npz", "test.npz")


def contents(folder: Path) -> dict[str, bytes]:
    """Rows of a study, and everything of its runs that is promised to be the same after a kill."""
    paths = [path for path in folder.rglob("*") if path.name in PROMISED]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def command(folder: Path, study: dict[str, Any], *options: str) -> list[str]:
    """`calibrant study` of a study in a folder."""
    spec = write_toml(folder.with_suffix(".toml"), study)
    return [sys.executable, "-m", "calibrant.cli", "study", str(spec), "-o", str(folder), *options]


def workers_of(child: subprocess.Popen) -> list[int]:
    """Processes that a command has started."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    return [int(each) for each in children.split()]
