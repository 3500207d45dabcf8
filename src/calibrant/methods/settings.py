"""Names of the settings of a method."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any


def settings_of(make: Callable[..., Any]) -> list[str]:
    """Names of the keyword-only arguments of a function or class."""
    found = signature(make).parameters.values()
    return [each.name for each in found if each.kind is Parameter.KEYWORD_ONLY]
