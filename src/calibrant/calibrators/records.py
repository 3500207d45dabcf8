"""JSON records, read as if a stranger had written them: wrong ones are refused in one line."""

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calibrant.files.checks import human, listed, one_line

WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
WORDS |= {list: "a list", dict: "an object", type(None): "null"}


def check_file(path: Path) -> None:
    """Refuse what is no file: reading a pipe or a device could wait for ever."""
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if not path.is_file():
        raise OSError(f"{path} is a folder or a device, not a file")


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
            raise ValueError(f"unknown key {short(key)} in {where}{meant(key, known)}")
    for name in names:
        if name not in record:
            raise ValueError(f"{where} has no {name!r}; it holds {listed(list(record))}")


def meant(name: str, known: Iterable[str]) -> str:
    """Hint at the nearest known name; all of them where none is near."""
    close = difflib.get_close_matches(name[:60], list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


def short(value: Any) -> str:
    """A value in a few characters, for messages; only the type of what may be large."""
    if isinstance(value, list | dict | type(None)):
        return WORDS[type(value)]
    return one_line(repr(value)[:200], 60)
