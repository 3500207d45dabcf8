"""Public names and options that were renamed: the old ones work for one release, and warn."""

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar, cast

# Old name -> new name. A module finds its old names by `__getattr__ = renamed_in(__name__)`, a
# class by `old_name = Renamed()`.
RENAMED = {
    "calibrant.data.judged_by": "calibrant.data.with_soft_labels",
    "calibrant.report.price_figure": "calibrant.report.multiplier_figure",
    "Predictions.rows": "Predictions.example_stats",
    "Predictions.row_weights": "Predictions.example_weights",
    "Calibrator.free_form": "Calibrator.nonparametric",
    "Candidate.behind": "Candidate.difference_to_best",
    "Selection.rows": "Selection.candidates",
    "Method.rows": "Method.flatten",
    "Method.adjusted": "Method.adjust_logits",
    "Method.readjusted": "Method.with_adjusted_cross_entropy",
    "Probe.rows": "Probe.records",
    "Probe.test": "Probe.held_out",
    "Trained.readings": "Trained.records",
    "calibrant.methods.Alone": "calibrant.methods.SingleProcess",
    "calibrant.metrics.METHODS": "calibrant.metrics.INTERVAL_TYPES",
    "Summary.as_dict": "Summary.to_dict",
    "Selection.as_dict": "Selection.to_dict",
    "Selection.ties": "Selection.parts",
}
# Function and argument, and the argument that replaces it.
ARGUMENTS = {
    ("interval", "method"): "interval_type",
    ("summary", "method"): "interval_type",
    ("select", "keep_argmax"): "preserve_class",
}
# Command and option, and the option that replaces it.
OPTIONS = {
    ("fit", "--method"): "--calibrator",
    ("audit", "--method"): "--interval-type",
    ("fit", "--keep-class"): "--preserve-class",
}


def current_name(old: str, *, stacklevel: int = 3) -> str:
    """Warn that a public name is deprecated, and return the last part of the new one."""
    new = RENAMED[old]
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel)
    return new.rpartition(".")[2]


def renamed_in(module: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module, which finds its old names."""

    def find(name: str) -> Any:
        if f"{module}.{name}" not in RENAMED:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(module), current_name(f"{module}.{name}"))

    return find


class Renamed:
    """The old name of an attribute of a class and of its objects."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = f"{owner.__name__}.{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(owner if instance is None else instance, current_name(self.old))


AnyClass = TypeVar("AnyClass", bound=type)


def renamed_arguments(*names: str) -> Callable[[AnyClass], AnyClass]:
    """Let a class take arguments by these old names, too; the new ones are in `RENAMED`."""

    def decorate(cls: AnyClass) -> AnyClass:
        init: Callable[..., None] = cls.__init__  # type: ignore[misc]

        @wraps(init)
        def with_old_names(*args: Any, **given: Any) -> None:
            for name in names:
                if name in given:
                    given[current_name(f"{cls.__name__}.{name}")] = given.pop(name)
            init(*args, **given)

        cls.__init__ = with_old_names  # type: ignore[misc]
        return cls

    return decorate


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def with_old_arguments(function: AnyFunction) -> AnyFunction:
    """Let a function take its old arguments of `ARGUMENTS`, too."""
    name = function.__name__
    replaced = {old: new for (owner, old), new in ARGUMENTS.items() if owner == name}

    @wraps(function)
    def with_old_names(*args: Any, **given: Any) -> Any:
        for old in replaced.keys() & given.keys():
            warning = f"{old} of {name} is deprecated, use {replaced[old]}"
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
            given[replaced[old]] = given.pop(old)
        return function(*args, **given)

    return cast("AnyFunction", with_old_names)


def replace_options(args: Sequence[str]) -> list[str]:
    """Replace old options of a command line by the new ones."""
    command = next((each for each in args if not each.startswith("-")), "")
    found = []
    for each in args:
        option, equals, value = each.partition("=")
        new = OPTIONS.get((command, option))
        if new is not None:
            # A UserWarning, which the command line shows.
            warnings.warn(f"{command} {option} is deprecated: use {new}", stacklevel=2)
        found.append(f"{new or option}{equals}{value}")
    return found
