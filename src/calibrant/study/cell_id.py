"""The id of a cell, one training of a study: a digest of its settings."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def cell_id(config: Mapping[str, Any]) -> str:
    """16 hex digits that name the settings of a cell, in whatever order they are given.

    The start of the SHA-256 of the canonical JSON; also the name of the cell's folder, so that no
    text of a user becomes a path.

    Examples:
        >>> cell_id({"method": "focal", "seed": 1}) == cell_id({"seed": 1, "method": "focal"})
        True
    """
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:16]


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
