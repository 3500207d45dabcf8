"""`calibrant list`: available metrics, losses, calibrators, methods and so on."""

import inspect
import re
from importlib import import_module
from typing import Annotated, Any

import typer

from calibrant.cli.screen import say, show_table

FAMILIES = {
    "metrics": "calibrant.metrics:METRICS",
    "losses": "calibrant.losses:LOSSES",
    "calibrators": "calibrant.calibrators:CALIBRATORS",
    "methods": "calibrant.methods:METHODS",
    "models": "calibrant.models:MODELS",
    "datasets": "calibrant.data:DATASETS",
    "measures": "calibrant.curvature:MEASURES",
    "shifts": "calibrant.data.shifts:KINDS",
    "examples": "calibrant.data:SYNTHETIC",
}
# Columns between the name and the meaning.
COLUMNS = {
    "calibrators": "predicted class",
    "methods": "settings",
    "models": "inputs",
    "datasets": "inputs",
    "shifts": "strengths",
}


def listing(
    family: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(FAMILIES)}; default: all.")
    ] = None,
) -> None:
    """List metrics, losses, calibrators, methods, models, datasets, measures and shifts."""
    if family is not None and family not in FAMILIES:
        raise ValueError(f"no list {family!r}; expected one of {', '.join(FAMILIES)}")
    for name in FAMILIES if family is None else [family]:
        say(name, style="bold")
        module, _, registry = FAMILIES[name].partition(":")
        columns = [COLUMNS[name]] if name in COLUMNS else []
        rows = [
            (_name(key), *(_value(column, member) for column in columns), _meaning(key, member))
            for key, member in getattr(import_module(module), registry).items()
        ]
        show_table(("name", *columns, "meaning"), rows)


def _name(key: Any) -> str:
    """Shifts are registered as functions, everything else by name."""
    return key if isinstance(key, str) else key.__name__


def _value(column: str, member: Any) -> str:
    if column == "predicted class":
        return "preserved" if member.keeps_argmax else "may change"
    if column == "settings":
        return ", ".join(member.settings) or "-"
    return f"1 to {len(member)}" if column == "strengths" else member.kind


def _meaning(key: Any, member: Any) -> str:
    """What a member says of itself, or the first line of its docstring without marks of $maths$."""
    if hasattr(member, "meaning"):
        return str(member.meaning)
    text = inspect.getdoc(member if isinstance(key, str) else key) or ""
    return re.sub(r"[$\\]", "", text.partition("\n")[0])
