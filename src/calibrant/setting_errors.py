"""Wrong settings: an error that knows which one it is, and the nearest name that exists."""

import difflib
from collections.abc import Iterable


class SettingError(ValueError):
    """A setting has a value that it cannot have.

    Attributes:
        name: name of the setting.
        problem: what must hold, and what came.

    Examples:
        >>> print(SettingError("gamma", "must be at least 0, got -1"))
        gamma must be at least 0, got -1
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name that exists, or all of them where none is near.

    >>> did_you_mean("focl", ["focal", "brier"]), did_you_mean("xyz", ["focal", "brier"])
    ('did you mean focal?', 'expected one of focal, brier')
    """
    names = list(known)
    # Comparing takes time by the product of the lengths.
    if close := difflib.get_close_matches(name[:60], names, 1):
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(names)}" if names else "it takes none"
