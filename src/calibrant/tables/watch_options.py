"""What `calibrant watch` is asked to do, and what it says."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.advice import InputError
from calibrant.tables.series import seconds_of
from calibrant.tables.sources import hide_password, is_url


@dataclass(frozen=True)
class WatchOptions:
    """What to watch, and how.

    Attributes:
        source: a folder that receives parquet or csv files; or a table with a time column: a file,
            or the URL of a database.
        time: column of times; without it each file is a window.
        every: width of the windows.
        bins: number of bins.
        level: probability of a false alarm, over the whole stream.
        grace: seconds for which an incomplete file is waited for.
        keep_going: leave out files that cannot be read, and count them.
        drop_invalid: leave out invalid rows, and count them.
        include_last: also count the newest window of a table, which may still grow.
        columns: names of columns, see `find_columns`.
    """

    source: str
    time: str | None = None
    every: str = "1d"
    bins: int = 15
    level: float = 0.05
    grace: float = 600.0
    keep_going: bool = False
    drop_invalid: bool = False
    include_last: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seconds_of(self.every)
        if not 0 < self.level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {self.level}")
        if not is_url(self.source) and not Path(self.source).exists():
            raise FileNotFoundError(f"no such file or folder: {self.source}")
        if not self.is_folder and self.time is None:
            problem = f"{self.name} is a table without a column of times"
            raise InputError(problem, "name it with time", "name it with --time")

    @property
    def name(self) -> str:
        """The source as it may be shown: without a password."""
        return hide_password(self.source)

    @property
    def is_folder(self) -> bool:
        """Whether files arrive, not rows of one table."""
        return not is_url(self.source) and Path(self.source).is_dir()

    @property
    def fixed(self) -> dict[str, Any]:
        """Options that must stay as they are, as plain values."""
        given = {name: value for name, value in self.columns.items() if value}
        fixed = {"time": self.time, "every": self.every, "bins": self.bins, "columns": given}
        plain: dict[str, Any] = json.loads(json.dumps({"folder": self.is_folder, **fixed}))
        return plain


@dataclass(frozen=True)
class Event:
    """Something that happened in a step: a sentence, and the same as plain values."""

    kind: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant watch --json` prints them."""
        return {"event": self.kind, "text": self.text, **self.values}


def e_text(log_e_value: float) -> str:
    """An e-value to three digits, given its logarithm, which does not overflow.

    >>> e_text(math.log(21.34)), e_text(5000.0)
    ('21.3', '1e2171')
    """
    power = log_e_value / math.log(10)
    return f"{10**power:.3g}" if power < 6 else f"1e{int(power)}"
