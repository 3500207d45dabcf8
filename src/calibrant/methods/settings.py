"""Settings of a method: names that exist, and the nearest one for a name that does not."""

import difflib
from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any


def settings_of(make: Callable[..., Any]) -> list[str]:
    """Names of the keyword-only arguments of a function or class."""
    found = signature(make).parameters.values()
    return [each.name for each in found if each.kind is Parameter.KEYWORD_ONLY]


def meant(name: str, known: Iterable[str]) -> str:
    """What a wrong name was probably meant to be, or all that exist."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(names)}" if names else "it takes none"
