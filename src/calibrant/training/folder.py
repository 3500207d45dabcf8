"""The folder of a run: what is in it, who may write there, and whether it is this run's."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from calibrant import __version__
from calibrant.data import Splits
from calibrant.files.atomic import sweep
from calibrant.methods import Method
from calibrant.training.checkpoint import encoded, write
from calibrant.training.recipe import Recipe
from calibrant.training.runtime import Runtime

CONFIG, HISTORY, WEIGHTS = "config.json", "history.jsonl", "weights.pt"
RESULT, DIVERGED = "result.json", "diverged.json"

Identity = dict[str, Any]


def identity_of(
    model: nn.Module,
    method: Method,
    splits: Splits,
    recipe: Recipe,
    seed: int,
    runtime: Runtime,
    config: Mapping[str, Any],
) -> Identity:
    """Everything that decides about the bytes of a result, one name for each."""
    return {
        **config,
        "method": method.description or type(method).__name__,
        "first weights": _digest(model),
        "seed": seed,
        **{f"recipe.{name}": value for name, value in recipe.flat().items()},
        "data": splits.fingerprint,
        "calibrant": __version__,
        "torch": torch.__version__,
        "processes": runtime.world_size,
        "threads": torch.get_num_threads(),
        "device": runtime.device.type,
    }


def _digest(model: nn.Module) -> str:
    """SHA-256 of names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for name, each in model.state_dict().items():
        digest.update(f"{name} {each.dtype} {tuple(each.shape)}".encode())
        digest.update(each.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def drift(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]
) -> dict[str, Any]:
    """What differs from the run in this folder, if that is allowed; an error if it is not."""
    differs = {
        name: [before.get(name), now.get(name)]
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }
    for name, (old, new) in differs.items():
        if name not in allowed:
            raise ValueError(
                f"{folder} was made with {name} = {old}, now it is {new}: choose another folder, "
                f"or go on with --allow-drift {name}"
            )
    return differs


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Have the folder alone, and free of what killed runs left half written."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as handle:
        _lock(folder, handle)
        sweep(folder)
        yield


def _lock(folder: Path, handle: TextIO) -> None:
    """Lock until the process ends, however it ends; not on Windows, which has no such locks."""
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is training in {folder}: wait for it") from error


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record that every parser takes."""
    write(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a record; None if there is none."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: remove it and run the command again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: remove it and run the command again")
    return found


def write_history(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """One line of JSON for each epoch."""
    lines = [json.dumps(row) for row in history]
    write(folder / HISTORY, ("\n".join(lines) + "\n").encode())


def read_history(folder: Path) -> list[dict[str, float]]:
    """The rows that `write_history` wrote."""
    text = (folder / HISTORY).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write_weights(folder: Path, state: Mapping[str, Any]) -> None:
    """The weights alone, for `torch.load(..., weights_only=True)`."""
    write(folder / WEIGHTS, encoded(state))


def sums(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
