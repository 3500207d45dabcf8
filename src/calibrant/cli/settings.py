"""Settings given as `name=value` on the command line."""

from collections.abc import Sequence
from typing import Any


def settings(option: str, given: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs; a value is a number, true, false, a list, or else a word.

    >>> settings("--method-set", ["gamma=3", "source=paper", "detach=true"])
    {'gamma': 3, 'source': 'paper', 'detach': True}
    """
    # Not at the top: it would load numpy for --help.
    from calibrant.study.spec_text import value

    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ValueError(f"{option} takes name=value, such as gamma=3; got {each!r}")
        if name == "name":
            raise ValueError(f"{option} cannot set a name: it has an option of its own")
        if name in found:
            raise ValueError(f"{option} {name} is given twice")
        found[name] = value(text.strip())
    return found
