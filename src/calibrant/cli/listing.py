"""`calibrant list`: available metrics, losses, calibrators, methods and so on."""

import inspect
import re
from importlib import import_module
from typing import Annotated, Any

import typer

from calibrant.cli.screen import say, show_table
from calibrant.setting_errors import did_you_mean

KINDS = {
    "metrics": "calibrant.metrics:METRICS",
    "losses": "calibrant.losses:LOSSES",
    "calibrators": "calibrant.calibrators:CALIBRATORS",
    "methods": "calibrant.methods:METHODS",
    "models": "calibrant.models:MODELS",
    "datasets": "calibrant.data:DATASETS",
    "measures": "calibrant.curvature:MEASURES",
    "shifts": "calibrant.data.shifts:KINDS",
    "examples": "calibrant.data:SYNTHETIC",
    "recipes": "calibrant.training:RECIPES",
    "loggers": "calibrant.training:LOGGERS",
}
# What makes the calibrators that consist of others.
MADE_BY = {
    "blend": "fit --calibrator blend",
    "sliced": "fit --by",
    "multi_label": "fit --multi-label",
    "multicalibration": "fit --by --calibrator multicalibration",
    "prior_shift": "apply --prior",
}
# A column after the meaning.
COLUMNS = {
    "calibrators": "predicted class",
    "methods": "settings",
    "models": "inputs",
    "datasets": "inputs",
    "shifts": "strengths",
}


def listing(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; default: all.")
    ] = None,
) -> None:
    """List metrics, losses, calibrators, methods, models, datasets, measures, loggers and so on."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"no list {kind!r}; {did_you_mean(kind, KINDS)}")
    for name in KINDS if kind is None else [kind]:
        say(name, style="bold")
        module, _, registry = KINDS[name].partition(":")
        columns = [COLUMNS[name]] if name in COLUMNS else []
        rows = [
            (_name(key), _meaning(key, member), *(_value(column, member) for column in columns))
            for key, member in getattr(import_module(module), registry).items()
        ]
        if name == "calibrators":
            rows += _composed()
        show_table(("name", "meaning", *columns), rows)


def _composed() -> list[tuple[str, str, str]]:
    """Rows of the calibrators that consist of others."""
    from calibrant.calibrators.storage import COMPOSED

    return [
        (name, f"{_meaning(name, kind)} ({MADE_BY[name]})", "depends")
        for name, kind in COMPOSED.items()
    ]


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
    """Meaning of a member, or the first line of its docstring without marks of $maths$."""
    text = getattr(member, "meaning", "")
    text = text or inspect.getdoc(member if isinstance(key, str) else key) or ""
    line = re.sub(r"[$\\]", "", text.partition("\n")[0]).rstrip(".")
    return line[:1].upper() + line[1:]
