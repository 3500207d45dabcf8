"""The folder of the datasets of the user."""

import os
from pathlib import Path

VARIABLE = "CALIBRANT_DATA"


def data_folder() -> Path:
    """Return $CALIBRANT_DATA, else `calibrant/data` in $XDG_CACHE_HOME, else in ~/.cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibrant" / "data"
