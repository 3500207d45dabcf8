"""The text of a study: TOML from a file, and single values changed by the caller."""

import copy
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.files.checks import human, one_line

MAX_BYTES = 2**20
# Tables in tables; nothing in a study lies deeper than three.
MAX_DEPTH = 32
# Python reads no integer of more digits.
LONG_INTEGER = re.compile("[0-9_]{4301,}")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
# tomllib takes time by the square of the parts of a key, and others a call for each part. A part
# begins only where none is under way, else a long word would take time by its square as well.
LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:{_PART}){{{MAX_DEPTH},}}")
KEY, INDEX = "[A-Za-z0-9_-]+", r"\[[0-9]{1,6}\]"
ANY_PLACE = re.compile(rf"{KEY}(\.{KEY}|{INDEX})*")
STEP = re.compile(rf"{INDEX}|{KEY}")


def load(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of at most 1 MB; an error has the path, what is wrong, and in which line."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: pass the TOML file, or use `calibrant worker {path}`"
        )
    if not path.is_file():
        raise ValueError(f"{path}: a study must be a regular file")
    with path.open("rb") as handle:
        content = handle.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = max(path.stat().st_size, len(content))
        raise ValueError(f"{path}: a study must have at most 1 MB, got {human(size)}")
    try:
        return _parsed(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: byte 0x{content[error.start]:02x} in line {line} is not UTF-8; save the file "
            "as UTF-8"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {one_line(error)}") from None


def _parsed(text: str) -> dict[str, Any]:
    """Read TOML, with a limit on how deep lists and tables are nested."""
    if key := LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise ValueError(f"the key in line {line} has more than {MAX_DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        number = LONG_INTEGER.search(text)
        line = text.count("\n", 0, number.start() if number else 0) + 1
        raise ValueError(f"the integer in line {line} has more than 64 bits") from None
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        held = [each for each in level if isinstance(each, dict | list)]
        level = [v for each in held for v in (each.values() if isinstance(each, dict) else each)]
    if level:
        raise ValueError("lists or tables are nested too deeply")
    return found


def value(text: str) -> Any:
    """A number, boolean, list or table as TOML writes it; anything else is a string."""
    try:
        read = _parsed(f"x = {text}")
    except ValueError:
        return text
    return read["x"] if len(read) == 1 else text


def overridden(given: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Put in values such as `recipe.epochs=5` or `dataset[0].limit=500`, each at its place."""
    changed = copy.deepcopy(given)
    seen: set[str] = set()
    for each in overrides:
        place, equals, text = each.partition("=")
        place = place.strip()
        if not equals or not ANY_PLACE.fullmatch(place):
            raise ValueError(
                f"an override must be place=value, such as recipe.epochs=5 or "
                f"dataset[0].limit=500; got {one_line(repr(each))}"
            )
        steps = [int(s[1:-1]) if s[0] == "[" else s for s in STEP.findall(place)]
        place = one_line(place, 60)
        if len(steps) > MAX_DEPTH:
            raise ValueError(f"override {place}: more than {MAX_DEPTH} parts")
        if place in seen:
            raise ValueError(f"override {place}: given twice")
        seen.add(place)
        _put(changed, place, steps, value(text.strip()))
    return changed


def _put(given: Any, place: str, steps: Sequence[str | int], new: Any) -> None:
    """Set a value; tables on the way to it are made, entries of lists must exist."""
    *before, last = steps
    for step, following in zip(before, steps[1:], strict=True):
        _check_step(given, place, step)
        if isinstance(given, dict) and step not in given:
            given[step] = [] if isinstance(following, int) else {}
        given = given[step]
    _check_step(given, place, last)
    given[last] = new


def _check_step(given: Any, place: str, step: str | int) -> None:
    if isinstance(step, str) and not isinstance(given, dict):
        raise ValueError(f"override {place}: {step} is not in a table")
    if isinstance(step, int) and (not isinstance(given, list) or step >= len(given)):
        holds = len(given) if isinstance(given, list) else 0
        raise ValueError(f"override {place}: there is no entry [{step}], only {holds}")
