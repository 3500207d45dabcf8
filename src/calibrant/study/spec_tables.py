"""Check one table of a study against the settings it may hold; one line says what is wrong."""

import math
import types
from collections.abc import Iterable
from datetime import date, time
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from calibrant.extras import need
from calibrant.files.checks import one_line
from calibrant.setting_errors import did_you_mean
from calibrant.study.spec_settings import FREE, Fields

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
MANY = {bool: "truth values", int: "whole numbers", float: "numbers", str: "words"}
CONFIG = {"extra": "forbid", "strict": True, "frozen": True}


def checked(
    path: str, given: Any, known: Fields, *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of a table in their types; refused with the path of the first that is wrong.

    Args:
        path: of the table in the file, empty for the whole.
        given: what the file holds there.
        known: keys, their types and defaults.
        required: keys that must be there.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected a table, got {shown(given)}")
    for key in given:
        if key not in known:
            raise ValueError(
                f"{_join(path, key)}: unknown; {did_you_mean(one_line(key, 60), known)}"
            )
    for key in required:
        if key not in given:
            raise ValueError(f'{_join(path, key)}: missing; write {key} = "..."')
    pydantic = need("pydantic", extra="study", what="reading a study")
    model = table_model(tuple((key, each[0]) for key, each in known.items()))
    try:
        read = model.model_validate(given)
    except pydantic.ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"]
        raise ValueError(_wrong(path, given, known, place)) from None
    found: dict[str, Any] = {key: getattr(read, f"of_{key}") for key in given}
    for key, value in found.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, float) and not math.isfinite(each):
                expected = words(known[key][0])
                raise ValueError(
                    f"{_join(path, key)}: expected {expected}, got {each}, which is no finite one"
                )
    return found


@cache
def table_model(known: tuple[tuple[str, Any], ...]) -> Any:
    """A pydantic model of a table; none of its keys has to be there."""
    pydantic = need("pydantic", extra="study", what="reading a study")
    # Through aliases, because a key may be called like a method of pydantic's models.
    columns: dict[str, Any] = {
        f"of_{key}": (kind, pydantic.Field(alias=key, default=None)) for key, kind in known
    }
    return pydantic.create_model("table", __config__=CONFIG, **columns)


def _wrong(path: str, given: dict[str, Any], known: Fields, place: tuple[Any, ...]) -> str:
    key, kind, value = place[0], known[place[0]][0], given[place[0]]
    path = _join(path, key)
    origin: Any = get_origin(kind)
    if origin is list and len(place) > 1:
        path, kind, value = f"{path}[{place[1]}]", get_args(kind)[0], value[place[1]]
    if origin is Literal and isinstance(value, str):
        return f"{path}: no {shown(value)}; {did_you_mean(value[:60], get_args(kind))}"
    if origin is list and isinstance(value, dict):
        return f"{path}: expected a list of tables, got one: write [[{path}]], not [{path}]"
    return f"{path}: expected {words(kind)}, got {shown(value)}"


def words(kind: Any) -> str:
    """A type as a person says it.

    >>> words(int | list[int])
    'a whole number or a list of whole numbers'
    """
    origin: Any = get_origin(kind)
    inner = get_args(kind)
    if kind == FREE:
        return "a number, a word, true or false, or a list of these"
    if origin in (Union, types.UnionType):
        return " or ".join(words(each) for each in inner)
    if origin is list:
        return f"a list of {MANY.get(inner[0], 'tables')}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    return WORDS.get(kind, "a table")


def shown(value: Any) -> str:
    """A value in a message: one line, and not long."""
    # Python refuses to print whole numbers of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list) and value:
        kind = "table" if isinstance(value, dict) else "list"
        return f"a {kind} of {len(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return f"the date or time {value}"
    return one_line(repr(value[:200] if isinstance(value, str) else value), 80)


def _join(path: str, key: str) -> str:
    key = one_line(key, 60)
    return f"{path}.{key}" if path else key
