"""JSON records of calibrator files, treated as untrusted input; errors are one line."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.advice import InputError
from calibrant.files.checks import check_file, human, listed, one_line, without_duplicates
from calibrant.setting_errors import did_you_mean

KINDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
KINDS |= {list: "a list", dict: "an object", type(None): "null"}
DTYPES = {"float64": torch.float64, "int64": torch.int64}
DIGEST = "sha256"


def digest_of(record: Mapping[str, Any]) -> str:
    """SHA-256 of all values of a record except its digest, independent of the layout."""
    rest = {key: value for key, value in record.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def text_of(record: Mapping[str, Any]) -> str:
    """Indented JSON with each list of numbers on one line."""
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
    # No string holds a line break, so none is matched.
    return re.sub(r'\[\n([^][{}"]*)\]', lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def parsed(path: Path, *, max_bytes: int) -> Any:
    """Parse a JSON file of bounded size, without duplicate keys."""
    check_file(path)
    with open(path, "rb") as handle:
        content = handle.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"more than {human(max_bytes)}: not a calibrator file")
    try:
        return json.loads(content.decode(), object_pairs_hook=without_duplicates)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError:
        raise other_file("not UTF-8 text") from None
    except RecursionError:
        problem = "nested too deeply"
    raise ValueError(f"not valid JSON: {problem}")


def other_file(reason: str) -> InputError:
    """The error of a file that is no calibrator, such as predictions."""
    python = "pass a file that calibrators.save wrote"
    command = "the file of `calibrant fit` comes first: calibrant apply CALIBRATOR FILE"
    return InputError(f"not a calibrator file: {reason}", python, command)


def typed(where: str, value: Any, kind: type) -> Any:
    """Return a value of the expected type, and refuse all others."""
    # JSON may write 1.0 as 1; true is an int in Python only.
    valid = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not valid or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} must be {KINDS[kind]}, got {short(value)}")
    if kind is float and isinstance(value, int) and abs(value) > 2**53:
        raise ValueError(f"{where}: {short(value)} has more digits than a float")
    return value


def check_keys(
    where: str, record: Mapping[str, Any], names: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse a record with unknown or missing keys."""
    known = [*names, *optional]
    for key in record:
        if key not in known:
            raise ValueError(f"unknown key {short(key)} in {where}; {did_you_mean(key, known)}")
    for name in names:
        if name not in record:
            raise ValueError(f"{where} has no {name!r}; it holds {listed(list(record))}")


def short(value: Any) -> str:
    """Format a value for messages; only the type of values that may be large."""
    if isinstance(value, list | dict | type(None)):
        return KINDS[type(value)]
    return one_line(repr(value)[:200], 60)


def encoded(value: Any, *, inline: bool) -> Any:
    """Convert a parameter to JSON; a tensor that is not inline to its dtype and shape alone."""
    if not isinstance(value, Tensor):
        return value
    names = {dtype: name for name, dtype in DTYPES.items()}
    record = {"dtype": names[value.dtype], "shape": list(value.shape)}
    return record | {"values": value.flatten().tolist()} if inline else record


def decoded(where: str, value: Any, hint: Any, loaded: np.ndarray | None) -> Any:
    """Convert JSON to a parameter of the type of its field; `loaded` is from the tensor file."""
    if hint in (int, float, str, bool):
        plain = typed(where, value, hint)
        return float(plain) if hint is float else plain
    record = typed(where, value, dict)
    check_keys(where, record, ("dtype", "shape") + (() if loaded is not None else ("values",)))
    dtype = typed(f"{where}.dtype", record["dtype"], str)
    if dtype not in DTYPES:
        raise ValueError(f"{where}.dtype must be one of {', '.join(DTYPES)}, got {short(dtype)}")
    at = f"{where}.shape"
    shape = [typed(at, n, int) for n in typed(at, record["shape"], list)]
    if loaded is not None:
        if loaded.dtype.name != dtype or list(loaded.shape) != shape:
            raise ValueError(
                f"{where} is {dtype} {shape}, its file holds {loaded.dtype} {list(loaded.shape)}"
            )
        return torch.from_numpy(loaded)
    numbers = typed(f"{where}.values", record["values"], list)
    if len(numbers) != math.prod(shape):
        raise ValueError(f"{where} has {len(numbers)} values, shape {shape} needs another count")
    kind = float if dtype == "float64" else int
    for number in numbers:
        typed(f"{where}.values", number, kind)
    try:
        return torch.tensor(numbers, dtype=DTYPES[dtype]).reshape(shape)
    except (RuntimeError, OverflowError, ValueError):
        raise ValueError(f"{where}: values do not fit {dtype} of shape {shape}") from None
