"""The folder of a run: its files, its lock, and the identity of the run."""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant import __version__
from calibrant.data import Splits
from calibrant.files.atomic import sweep
from calibrant.files.checks import check_file, without_duplicates
from calibrant.files.locks import GLANCE, BusyError, FileLock
from calibrant.methods import Method
from calibrant.training.checkpoint import write
from calibrant.training.recipe import Recipe
from calibrant.training.runtime import Runtime

CONFIG, HISTORY, WEIGHTS = "config.json", "history.jsonl", "weights.pt"
RESULT, DIVERGED, PROBED = "result.json", "diverged.json", "probe.jsonl"
LOCK = "lock"
# The key of a record's checksum, which is of this form.
SUM, HEX = "sha256", re.compile("[0-9a-f]{64}")

Identity = dict[str, Any]
ROOT = Path(__file__).parents[1]
# Folders and modules whose code decides about the numbers of a run.
DECISIVE = (
    *("training", "methods", "calibrators", "curvature", "data", "models", "metrics", "losses"),
    *("predictions", "score_array", "example_stats", "checks", "shapes", "model_modes"),
    "amx_workaround",
)


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
        # JSON has no infinity, which some settings may be.
        **{k: str(v) if isinstance(v, float) and math.isinf(v) else v for k, v in config.items()},
        "method": method.description or _described(method),
        "seed": seed,
        **{f"recipe.{name}": value for name, value in recipe.flat().items()},
        "data": splits.fingerprint,
        "network": hashlib.sha256(repr(model).encode()).hexdigest(),
        "first_weights": _digest(model),
        "calibrant": f"{__version__}+{code_digest(DECISIVE)}",
        "torch": str(torch.__version__),
        "processes": runtime.world_size,
        "threads": torch.get_num_threads(),
        "device": runtime.device.type,
    }


def _described(method: Method) -> str:
    """Class and plain attributes of a method that was not made by name."""
    plain = (bool, int, float, str, tuple, type(None))
    settings = {k: v for k, v in sorted(vars(method).items()) if isinstance(v, plain)}
    return f"{type(method).__module__}.{type(method).__qualname__} {settings}"


@cache
def code_digest(names: tuple[str, ...], root: Path = ROOT) -> str:
    """Digest of the source of these folders and modules of the package, `.` is all of it.

    A version number alone misses changes between two versions.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if "." in names or place.parts[0].removesuffix(".py") in names:
            digest.update(f"{place} {path.stat().st_size}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _digest(model: nn.Module) -> str:
    """SHA-256 of names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for name, each in model.state_dict().items():
        digest.update(f"{name} {each.dtype} {tuple(each.shape)}".encode())
        digest.update(each.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


class DriftError(ValueError):
    """An unfinished run in the folder was made with other settings, data or code.

    Attributes:
        folder: folder of the run.
        changes: what differs, as pairs of the value before and the value now.
    """

    def __init__(self, folder: Path, changes: Mapping[str, Any]) -> None:
        super().__init__(folder, changes)
        self.folder, self.changes = folder, changes

    @property
    def problem(self) -> str:
        """What differs, in one line without advice."""
        shown = (
            f"{name} = {_short(before)}, now {_short(now)}"
            for name, (before, now) in self.changes.items()
        )
        return f"{self.folder} was made with {'; '.join(shown)}"

    def __str__(self) -> str:
        options = " ".join(f"--allow-drift {name}" for name in self.changes)
        return f"{self.problem}: choose another folder, or resume with {options}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between two runs, as pairs; settings first, what follows from them after."""
    pairs = {name: [before.get(name), now.get(name)] for name in (*now, *before)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:8]}..." if len(text) == 64 and text.isalnum() else text


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock the folder, and remove drafts that killed runs left."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK) as lock:
        if not lock.acquire(seconds=GLANCE):
            raise BusyError(f"another process is training in {folder}: wait for it")
        sweep(folder)
        yield


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record that every parser takes, with a checksum of itself as its last key."""
    # As it will be read: JSON turns tuples into lists, and keys into strings.
    plain = json.loads(json.dumps(record, allow_nan=False))
    whole = {**plain, SUM: _sum_of(plain)}
    write(path, (json.dumps(whole, indent=1) + "\n").encode())


def read_json(path: Path, *, summed: bool = False) -> dict[str, Any] | None:
    """Read a record without its checksum; None if there is none, an error if it was changed.

    One without a checksum is an older one, or was written by hand; `summed` refuses it.
    """
    if not path.exists():
        return None
    check_file(path)
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise damaged(path) from error
    if not isinstance(found, dict):
        raise damaged(path)
    expected = found.pop(SUM, None)
    # We write it last: a digest in that place under another name is a damaged one.
    last = next(reversed(found.values()), None)
    renamed = expected is None and isinstance(last, str) and HEX.fullmatch(last)
    if renamed or ((summed or expected is not None) and expected != _sum_of(found)):
        raise damaged(path)
    return found


def damaged(path: Path | str) -> ValueError:
    """Error about a record that cannot be read."""
    return ValueError(f"{path} is damaged: remove it and re-run the same command")


def read_history(folder: Path, *, name: str = HISTORY) -> list[dict[str, Any]]:
    """Metrics of each epoch, or records of a probe; nothing if there is no such file."""
    return read_lines(folder / name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object in each line; nothing if there is no such file."""
    if not path.exists():
        return []
    check_file(path)
    rows: list[dict[str, Any]] = []
    for place, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise damaged(f"{path}:{place}")
        rows.append(row)
    return rows


def sums(folder: Path, names: Collection[str]) -> dict[str, str]:
    """SHA-256 of files; empty for one that is not there."""
    there = [name for name in names if (folder / name).is_file()]
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in there}
    return dict.fromkeys(names, "") | found


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read the record of a finished run; None if it is not finished, an error if it was changed."""
    record = read_json(folder / RESULT, summed=True)
    if record is None:
        return None
    files = record.get("files")
    if isinstance(files, dict) and (changed := list(differences(files, sums(folder, files)))):
        raise ValueError(
            f"{folder / changed[0]} has changed or gone since the run ended: remove {RESULT} to "
            "resume from the last checkpoint"
        )
    if "jobs" in record:
        # The name in runs of older versions.
        record["roles"] = record.pop("jobs")
    return record


def _sum_of(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
