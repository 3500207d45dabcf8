"""Numbers that a training logged, by column; whatever is not a number is NaN."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def number(value: Any) -> float:
    """A number of a file; NaN for everything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def numbers(value: Any) -> list[float]:
    """A list of numbers of a file; empty for everything else."""
    return [number(each) for each in value] if isinstance(value, list) else []


def column(rows: Rows, name: str) -> list[float]:
    """One number of each row."""
    return [number(row.get(name)) for row in rows]


def has_numbers(values: Sequence[float]) -> bool:
    """Whether there is something to draw."""
    return any(map(math.isfinite, values))
