"""The text of a study: TOML from a file, and single values changed by the caller."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.files.checks import human, one_line

MAX_BYTES = 2**20
# Where tomllib stopped, at the end of its messages.
PLACE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)
# Its wording for a key that is given twice.
TWICE = "Cannot overwrite a value"
# Tables in tables; nothing in a study lies deeper than three.
MAX_DEPTH = 32
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
# tomllib takes time by the square of the parts of a key, and others a call for each part. A part
# begins only where none is under way, else a long word would take time by its square as well.
LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:{_PART}){{{MAX_DEPTH},}}")
KEY, INDEX = "[A-Za-z0-9_-]+", r"\[[0-9]{1,6}\]"
ANY_PLACE = re.compile(rf"{KEY}(\.{KEY}|{INDEX})*")
STEP = re.compile(rf"{INDEX}|{KEY}")


def load(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of at most 1 MB.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: one line that begins with file:line:column.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: a study must be a file, and this is none")
    with path.open("rb") as handle:
        content = handle.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = max(path.stat().st_size, len(content))
        raise ValueError(f"{path}: a study must have at most 1 MB, got {human(size)}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        byte = content[error.start]
        raise ValueError(
            f"{path}:{line}:{column}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    if key := LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise ValueError(f"{path}:{line}:1: a key has more than {MAX_DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{path}:1:1: lists or tables lie too deep in each other") from None
    except ValueError as error:
        raise ValueError(_placed(path, text, str(error))) from None
    if _too_deep(found):
        raise ValueError(f"{path}:1:1: lists or tables lie too deep in each other")
    return found


def _too_deep(given: Any) -> bool:
    """Whether lists and tables lie deeper in each other than those that read them can follow."""
    level = [given]
    for _ in range(MAX_DEPTH):
        level = [
            each
            for one in level
            if isinstance(one, dict | list)
            for each in (one.values() if isinstance(one, dict) else one)
        ]
    return bool(level)


def _placed(path: Path, text: str, message: str) -> str:
    """What tomllib said, after the place where it stopped."""
    found = PLACE.match(message)
    if found is None:
        return f"{path}:1:1: {one_line(message)}"
    said, line, column = found.groups()
    if line is None:
        line, column = text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1
    if said == TWICE:
        said = "this key is given twice"
    return f"{path}:{line}:{column}: {one_line(said)}"


def value(text: str) -> Any:
    """A number, truth value, list or table as TOML writes it; anything else is a word."""
    if LONG_KEY.search(text):
        return text
    try:
        read = tomllib.loads(f"x = {text}")
    except (ValueError, RecursionError):
        return text
    return read["x"] if len(read) == 1 and not _too_deep(read) else text


def overridden(given: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Put in values such as `recipe.epochs=5` or `dataset[0].limit=500`, each at its place."""
    changed: dict[str, Any] = _copied(given)
    seen: set[str] = set()
    for each in overrides:
        place, equals, text = each.partition("=")
        place = place.strip()
        if not equals or not ANY_PLACE.fullmatch(place):
            raise ValueError(
                f"an override must be place=value, such as recipe.epochs=5 or "
                f"dataset[0].limit=500; got {one_line(repr(each))}"
            )
        if place in seen:
            raise ValueError(f"override {place}: given twice")
        seen.add(place)
        if len(_split(place)) > MAX_DEPTH:
            raise ValueError(f"override {one_line(place, 60)}: more than {MAX_DEPTH} parts")
        steps = [int(s[1:-1]) if s[0] == "[" else s for s in _split(place)]
        _put(changed, place, steps, value(text.strip()))
    return changed


def _split(place: str) -> list[str]:
    """`dataset[0].limit` as its three steps."""
    return STEP.findall(place)


def _put(given: dict[str, Any], place: str, steps: Sequence[str | int], new: Any) -> None:
    at: Any = given
    passed = ""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(at, list) or step >= len(at):
                holds = len(at) if isinstance(at, list) else 0
                raise ValueError(
                    f"override {place}: the study has no {passed}[{step}]; {passed} has {holds}"
                )
        elif not isinstance(at, dict):
            raise ValueError(f"override {place}: {passed} is no table")
        if following is None:
            at[step] = new
            return
        if isinstance(at, dict) and step not in at:
            at[step] = [] if isinstance(following, int) else {}
        at = at[step]
        passed += f"[{step}]" if isinstance(step, int) else f".{step}" if passed else step


def _copied(given: Any) -> Any:
    """A deep copy of tables and lists."""
    if isinstance(given, dict):
        return {key: _copied(each) for key, each in given.items()}
    return [_copied(each) for each in given] if isinstance(given, list) else given
