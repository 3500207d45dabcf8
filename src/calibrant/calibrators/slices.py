"""Slices of examples: the values of one or more columns, as text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.files.checks import one_line
from calibrant.shapes import Index

# A slice: one value of each column.
Key = tuple[str, ...]
# The column of keys that have no name.
UNNAMED = "slice"
# An integer written as a float.
INTEGER = re.compile(r"^(-?\d+)\.0+$")


def slice_keys(slices: Any, *, examples: int) -> tuple[Key, list[Key]]:
    """Return the names of the columns, and the slice of each example.

    Args:
        slices: n values, or a dict of columns with n values each: strings, integers or booleans.
            2.0 is the integer 2, as a float and as text.
        examples: n.

    Raises:
        ValueError: a missing value, another number of values, or fractions.

    Examples:
        >>> slice_keys({"region": ["north", "south"], "version": [1.0, 2.0]}, examples=2)
        (('region', 'version'), [('north', '1'), ('south', '2')])
    """
    given = slices if isinstance(slices, Mapping) else {UNNAMED: slices}
    if not given:
        raise ValueError("slices need at least one column")
    texts = []
    for name, column in given.items():
        values = column.tolist() if hasattr(column, "tolist") else list(column)
        if len(values) != examples:
            raise ValueError(f"column {name!r} must have {examples:,} values, got {len(values):,}")
        known: dict[tuple[type, Any], str] = {}
        texts.append([_text(name, row, value, known) for row, value in enumerate(values)])
    return tuple(map(str, given)), list(zip(*texts, strict=True))


def _text(name: str, row: int, value: Any, known: dict[tuple[type, Any], str]) -> str:
    """A value as text; `known` holds those that were checked."""
    if not isinstance(value, str | int | float):
        value = None
    # True and 1 are equal in Python.
    kind = type(value), value
    if kind in known:
        return known[kind]
    if value is None or value == "" or value != value:
        raise ValueError(
            f"column {name!r}: row {row} has no string, integer or boolean; "
            "fill it, for example with 'missing', or drop the row"
        )
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(
                f"column {name!r} must hold strings, integers or booleans, got {value} at row "
                f"{row}; put its values into bins first"
            )
        value = int(value)
    return known.setdefault(kind, INTEGER.sub(r"\1", str(value)))


def positions(keys: Sequence[Key], known: Sequence[Key]) -> Index:
    """Position of each key among the known ones, -1 if it is none of them, (n,)."""
    place = {key: at for at, key in enumerate(known)}
    return np.array([place.get(key, -1) for key in keys], dtype=np.int64)


def shown(key: Key) -> str:
    """A slice in one short line.

    >>> shown(("north", "v2"))
    'north, v2'
    """
    return one_line(", ".join(key), 60)
