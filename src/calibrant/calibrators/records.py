"""JSON records, written to be read, and read as if a stranger had written them.

Wrong ones are refused in one line.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.files.checks import check_file, human, listed, one_line
from calibrant.setting_errors import did_you_mean

WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
WORDS |= {list: "a list", dict: "an object", type(None): "null"}
DTYPES = {"float64": torch.float64, "int64": torch.int64}


DIGEST = "sha256"


def digest_of(record: Mapping[str, Any]) -> str:
    """SHA-256 of all values of a record but its own digest, whatever their layout in the file."""
    rest = {key: value for key, value in record.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def text_of(record: Mapping[str, Any]) -> str:
    """JSON with one line for each list of numbers: `indent` would give each number its own."""
    lines: list[str] = []
    inside = False
    for line in json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False).split("\n"):
        bare = line.lstrip()
        # Strings end with a quote, so a line that ends with a bracket opens a list; one of
        # objects is left as it is.
        opened = bool(lines) and lines[-1].endswith("[")
        inside = inside or (opened and bare != "{")
        if not inside:
            lines.append(line)
        elif opened or bare.startswith("]"):
            lines[-1] += bare
        else:
            lines[-1] += f" {bare}"
        inside = inside and not bare.startswith("]")
    return "\n".join(lines) + "\n"


def parsed(path: Path, *, max_bytes: int) -> Any:
    """Parse a file of JSON: no NaN, no key twice, not too long, not too deep."""
    check_file(path)
    with open(path, "rb") as handle:
        content = handle.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"more than {human(max_bytes)}: not a calibrator's file")
    try:
        return json.loads(
            content.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not valid JSON: {error.msg} at {where}") from None
    except UnicodeDecodeError:
        raise ValueError("not valid JSON: not text in UTF-8") from None
    except RecursionError:
        raise ValueError("not valid JSON: nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"key {one_line(key, 60)!r} comes twice")
        record[key] = value
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that a calibrator can have")


def typed(where: str, value: Any, kind: type) -> Any:
    """Return a value of the wanted type, and refuse all others."""
    # JSON writes 1.0 as such, but a hand may have written 1; true is an int for Python only.
    right = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not right or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} must be {WORDS[kind]}, got {short(value)}")
    if kind is float and isinstance(value, int) and abs(value) > 2**53:
        raise ValueError(f"{where}: {short(value)} has more digits than a float")
    return value


def check_keys(
    where: str, record: Mapping[str, Any], names: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse a record with a key that is unknown or without one that is needed."""
    known = [*names, *optional]
    for key in record:
        if key not in known:
            raise ValueError(f"unknown key {short(key)} in {where}; {did_you_mean(key, known)}")
    for name in names:
        if name not in record:
            raise ValueError(f"{where} has no {name!r}; it holds {listed(list(record))}")


def short(value: Any) -> str:
    """A value in a few characters, for messages; only the type of what may be large."""
    if isinstance(value, list | dict | type(None)):
        return WORDS[type(value)]
    return one_line(repr(value)[:200], 60)


def encoded(value: Any, *, inline: bool) -> Any:
    """A parameter as JSON has it; a tensor that is not inline by its type and shape alone."""
    if not isinstance(value, Tensor):
        return value
    names = {dtype: name for name, dtype in DTYPES.items()}
    record: dict[str, Any] = {"dtype": names[value.dtype], "shape": list(value.shape)}
    if inline:
        record["values"] = value.flatten().tolist()
    return record


def decoded(
    where: str, value: Any, hint: Any, loaded: np.ndarray | None
) -> float | int | str | Tensor:
    """A parameter of the type that its field has; its numbers if they came from another file."""
    if hint is float:
        number = float(typed(where, value, float))
        if not math.isfinite(number):
            raise ValueError(f"{where} must be finite, got {number}")
        return number
    if hint in (int, str, bool):
        plain: int | str = typed(where, value, hint)
        return plain
    return _tensor(where, value, loaded)


def _tensor(where: str, value: Any, loaded: np.ndarray | None) -> Tensor:
    record = typed(where, value, dict)
    check_keys(where, record, ("dtype", "shape") + (() if loaded is not None else ("values",)))
    dtype = typed(f"{where}.dtype", record["dtype"], str)
    if dtype not in DTYPES:
        raise ValueError(f"{where}.dtype must be one of {', '.join(DTYPES)}, got {short(dtype)}")
    sizes = typed(f"{where}.shape", record["shape"], list)
    if len(sizes) > 4 or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"{where}.shape must be up to 4 sizes, got {short(sizes)}")
    if loaded is not None:
        if loaded.dtype.name != dtype or list(loaded.shape) != sizes:
            raise ValueError(
                f"{where} says {dtype} {sizes}, its file holds {loaded.dtype} {list(loaded.shape)}"
            )
        tensor = torch.from_numpy(loaded)
    else:
        numbers = typed(f"{where}.values", record["values"], list)
        if len(numbers) != math.prod(sizes):
            raise ValueError(
                f"{where} has {len(numbers)} values, shape {sizes} needs another count"
            )
        # A whole number in a list of floats would lose digits without a word.
        single = float if dtype == "float64" else int
        for number in numbers:
            typed(f"{where}.values", number, single)
        try:
            tensor = torch.tensor(numbers, dtype=DTYPES[dtype]).reshape(sizes)
        except (RuntimeError, OverflowError, ValueError):
            raise ValueError(f"{where}: a value is out of range for {dtype}") from None
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{where} must hold finite numbers only")
    return tensor
