"""Cells of a study: their ids, and what the store says about them."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of a cell; the last three are ends.
STATUSES = ("pending", "running", "done", "diverged", "failed")
ENDS = STATUSES[2:]

Config = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A cell that its owner may run, for as long as it gives signs of life.

    Attributes:
        attempt: which attempt at the cell this is; whoever has an older one is refused.
        folder: where the cell's files go.
    """

    id: str
    config: Config
    attempt: int
    owner: str
    folder: Path


@dataclass(frozen=True)
class CellState:
    """A cell as it stands.

    Attributes:
        attempt: number of the last attempt, 0 before the first.
        owner: who runs it or ended it; empty while it is pending.
        reason: why the last attempt did not succeed; empty while running and if it did.
        seconds: what the run took, if it ended and its owner said so.
        position: its place in the order of the study, from 0.
    """

    id: str
    config: Config
    status: str
    attempt: int
    owner: str
    reason: str
    seconds: float | None
    position: int


@dataclass(frozen=True)
class Attempt:
    """One attempt at a cell.

    Attributes:
        outcome: running, done, diverged, failed, crashed (its worker died), lost (no sign of life
            within the lease) or released (its owner gave it back).
        started: in seconds since 1970, as is `ended`, which is None while it runs.
    """

    attempt: int
    owner: str
    started: float
    ended: float | None
    outcome: str
    reason: str
    seconds: float | None


def cell_id(config: Mapping[str, Any]) -> str:
    """16 hex digits that name the settings of a cell, in whatever order they are given.

    The start of the SHA-256 of the canonical JSON; also the name of the cell's folder, so that no
    text of a user becomes a path.

    Examples:
        >>> cell_id({"method": "focal", "seed": 1}) == cell_id({"seed": 1, "method": "focal"})
        True
    """
    return id_of(canonical(config))


def id_of(text: str) -> str:
    """Id of the cell with this canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def canonical(config: Mapping[str, Any]) -> str:
    """The one JSON text of these settings: sorted keys, no spaces, no NaN."""
    if not isinstance(config, Mapping):
        raise TypeError(f"a cell must be a dict of settings, got {type(config).__name__}")
    try:
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a cell must be plain JSON without NaN: {error}; got {config}") from error
    _check_names(config)
    return text


def _check_names(value: object) -> None:
    """JSON would make the number 1 and the text "1" the same name."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not isinstance(name, str):
                raise ValueError(f"names of settings must be text, got {name!r}")
            _check_names(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_names(each)


def stored_config(path: Path, id: str, text: str) -> Config:
    """Settings as they were added; an error if they are not those that the id names."""
    if id_of(text) != id:
        raise damaged(path, f"the settings of cell {id!r} have changed")
    config: Config = json.loads(text)
    return config


def damaged(path: Path, why: object) -> ValueError:
    """Error about a store that cannot be trusted; cells have their results in their own folders."""
    return ValueError(
        f"{path} is damaged ({why}): move it away and run the command again, finished cells keep "
        "their folders"
    )


def check_span(name: str, seconds: float, *, zero: bool = False) -> None:
    """Refuse durations that are no durations."""
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be a finite number of seconds {least}, got {seconds}")
