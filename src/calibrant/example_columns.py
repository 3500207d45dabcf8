"""Columns of attributes of the examples, such as region or age: numbers or texts, some missing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64

Numbers = Float64[np.ndarray, " n"]
# Larger numbers are cut to it.
LARGEST = 1e30
# An integer written as a float.
INTEGER = re.compile(r"^(-?\d+)\.0+$")
MOST_COLUMNS = 100


@dataclass(frozen=True, eq=False)
class ExampleColumn:
    """The values of one attribute.

    Attributes:
        name: its name.
        values: numbers with NaN where missing, or objects: text, or None where missing.
    """

    name: str
    values: np.ndarray

    @cached_property
    def numbers(self) -> Numbers:
        """The values as numbers; NaN where missing or no number."""
        if self.values.dtype == np.float64:
            return np.asarray(self.values.clip(-LARGEST, LARGEST))
        known = {text: _number(text) for text in set(self.values.tolist())}
        return np.array([known[text] for text in self.values.tolist()], dtype=np.float64)

    @cached_property
    def texts(self) -> list[str | None]:
        """The values as text; None where missing."""
        if self.values.dtype != np.float64:
            return [None if each is None else str(each) for each in self.values.tolist()]
        known = {each: _text(each) for each in np.unique(self.values).tolist() if each == each}
        return [known.get(each) for each in self.values.tolist()]

    @cached_property
    def is_numeric(self) -> bool:
        """Whether all values that are not missing are numbers, or texts of numbers."""
        missing = np.array([text is None for text in self.texts])
        return bool((np.isfinite(self.numbers) | missing).all())


def example_columns(given: Any, *, examples: int) -> tuple[ExampleColumn, ...]:
    """Check columns of attributes: a data frame, or a dict of n values each.

    Values are numbers, booleans or strings. None, NaN and the empty string are missing. A column
    whose values are all numbers, or texts of numbers, is numeric.

    Examples:
        >>> age, region = example_columns({"age": [31, None], "region": ["n", ""]}, examples=2)
        >>> age.is_numeric, age.numbers.tolist(), region.texts
        (True, [31.0, nan], ['n', None])
    """
    if not isinstance(given, Mapping):
        if not hasattr(given, "columns"):
            raise TypeError("columns must be a dict of columns or a data frame")
        given = {str(name): given[name] for name in given.columns}
    if not 1 <= len(given) <= MOST_COLUMNS:
        raise ValueError(f"need 1 to {MOST_COLUMNS} columns, got {len(given)}")
    found = []
    for name, values in given.items():
        column = ExampleColumn(str(name), _checked(str(name), values))
        if len(column.values) != examples:
            raise ValueError(
                f"column {name!r} must have {examples:,} values, got {len(column.values):,}"
            )
        found.append(column)
    return tuple(found)


def _checked(name: str, given: Any) -> np.ndarray:
    """Float64 of numbers, or objects of text and None."""
    values = given.to_numpy() if hasattr(given, "to_numpy") else given
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiubOUST":
        listed = given.tolist() if hasattr(given, "tolist") else list(given)
        values = np.empty(len(listed), dtype=object)
        values[:] = listed
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must have one value for each example")
    if values.dtype.kind in "fiu":
        return np.asarray(values, dtype=np.float64)
    texts = np.full(len(values), None, dtype=object)
    known: dict[tuple[type, Any], str | None] = {}
    numeric = True
    for row, value in enumerate(values.tolist()):
        if not isinstance(value, str | bool | int | float):
            _check_missing(name, row, value)
            continue
        # True and 1 are equal in Python.
        kind = type(value), value
        if kind not in known:
            known[kind] = _text_of(value)
            numeric &= type(value) in (int, float)
        texts[row] = known[kind]
    return ExampleColumn(name, texts).numbers if numeric else texts


def _text_of(value: str | bool | int | float) -> str | None:
    """A value as text; None if it is missing."""
    if isinstance(value, str):
        return INTEGER.sub(r"\1", value) if value else None
    if isinstance(value, bool):
        return str(value)
    return None if value != value else _text(float(value))


def _check_missing(name: str, row: int, value: Any) -> None:
    """Refuse what is neither a value nor None, nor a missing value of pandas."""
    if value is not None and type(value).__name__ not in ("NAType", "NaTType"):
        raise ValueError(
            f"column {name!r} must hold numbers, booleans or strings, got {type(value).__name__} "
            f"at row {row}"
        )


def _text(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _number(text: str | None) -> float:
    try:
        value = float("nan" if text is None else text)
    except ValueError:
        return float("nan")
    return min(max(value, -LARGEST), LARGEST) if value == value else value
