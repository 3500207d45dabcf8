"""Arrays in the columns of a table: one column, or one numbered column per class."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrant.files.checks import check_present

_NUMBERED = re.compile(r"(.+)_(0|[1-9][0-9]{0,6})", re.DOTALL)


def array_names(columns: Sequence[str]) -> list[str]:
    """Names of the arrays in a table; `logits_0, logits_1` are one array, `logits`.

    >>> array_names(["logits_0", "logits_1", "labels", "run_7"])
    ['logits', 'labels', 'run_7']
    """
    held = set(columns)
    found: dict[str, None] = {}
    for column in columns:
        match = _NUMBERED.fullmatch(column)
        base = match[1] if match and f"{match[1]}_0" in held else column
        found[base] = None
    return list(found)


def numbered_columns(path: Path, columns: Sequence[str], name: str) -> list[str]:
    """Return the numbered columns of an array; none if it is a single column of that name.

    Raises:
        ValueError: no such column, a gap in the numbers, or an ambiguous name.
    """
    near = (column for column in columns if column.startswith(f"{name}_"))
    matches = [match for column in near if (match := _NUMBERED.fullmatch(column))]
    numbers = sorted(int(match[2]) for match in matches if match[1] == name)
    numbered = [f"{name}_{i}" for i in numbers]
    if not numbered:
        check_present(path, [name], [*columns] if name in columns else array_names(columns))
    elif name in columns:
        raise ValueError(f"{path} has columns {name!r} and {numbered[0]!r}; drop one of the two")
    counts = Counter(columns)
    for column in numbered or [name]:
        if counts[column] > 1:
            raise ValueError(f"{path}: column {column!r} appears {counts[column]} times; keep one")
    for i, number in enumerate(numbers):
        if i != number:
            raise ValueError(
                f"{path}: column '{name}_{i}' is missing, though '{numbered[-1]}' is there; "
                f"number the columns of {name!r} from 0 without gaps"
            )
    return numbered


def check_table(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays that are not columns of one table."""
    first = next(iter(arrays))
    for name, array in arrays.items():
        match = _NUMBERED.fullmatch(name)
        if match and (match[1] in arrays or f"{match[1]}_0" in arrays):
            raise ValueError(
                f"array name {name!r} would be read back as part of {match[1]!r}; rename it"
            )
        if array.ndim not in (1, 2) or array.shape[1:] == (0,):
            raise ValueError(f"a table holds shapes (n,) and (n, k); {name!r} has {array.shape}")
        if len(array) != len(arrays[first]):
            raise ValueError(
                f"columns of a table have equal length; {first!r} has {len(arrays[first])} rows, "
                f"{name!r} has {len(array)}"
            )
