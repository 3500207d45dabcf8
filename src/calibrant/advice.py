"""Errors in the input that say what to do, in Python and on the command line."""


class AdvisedError(Exception):
    """A problem, and what to do about it in the two places where it can be met.

    Attributes:
        problem: what must hold, and what came.
        python: what to do in Python; shown by `str`.
        command: what to do on the command line; shown there.

    Examples:
        >>> error = InputError("rows do not sum to 1", "pass normalize=True", "add --normalize")
        >>> print(error)
        rows do not sum to 1; pass normalize=True
        >>> error.on_command_line
        'rows do not sum to 1; add --normalize'
    """

    def __init__(self, problem: str, python: str, command: str) -> None:
        super().__init__(problem, python, command)
        self.problem, self.python, self.command = problem, python, command

    def __str__(self) -> str:
        return f"{self.problem}; {self.python}"

    @property
    def on_command_line(self) -> str:
        """The problem, and the advice for the command line."""
        return f"{self.problem}; {self.command}"


class InputError(AdvisedError, ValueError):
    """An invalid value."""


class InputTypeError(AdvisedError, TypeError):
    """A value of the wrong type."""


def located(place: object, error: Exception) -> Exception:
    """Return an error of the same type whose message starts with a place, such as a path."""
    if isinstance(error, AdvisedError):
        return type(error)(f"{place}: {error.problem}", error.python, error.command)
    return type(error)(f"{place}: {error}")
