"""`calibrant list`: available metrics, losses, calibrators, methods and so on."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from calibrant.cli.screen import say, show_table


def first_line(thing: Callable[..., Any]) -> str:
    """First line of a docstring, which says what the thing means, without marks of $maths$.

    >>> first_line(first_line)
    'First line of a docstring, which says what the thing means, without marks of maths.'
    """
    return re.sub(r"[$\\]", "", (inspect.getdoc(thing) or "").partition("\n")[0])


def _metrics() -> dict[str, str]:
    from calibrant.metrics import METRICS

    return {name: metric.meaning for name, metric in METRICS.items()}


def _losses() -> dict[str, str]:
    from calibrant.losses import LOSSES

    return {name: first_line(loss) for name, loss in LOSSES.items()}


def _datasets() -> dict[str, tuple[str, str]]:
    from calibrant.data import DATASETS

    return {name: (dataset.kind, dataset.meaning) for name, dataset in DATASETS.items()}


def _examples() -> dict[str, str]:
    from calibrant.data import SYNTHETIC

    return {name: synthetic.meaning for name, synthetic in SYNTHETIC.items()}


def _models() -> dict[str, tuple[str, str]]:
    from calibrant.models import MODELS

    return {name: (model.kind, model.meaning) for name, model in MODELS.items()}


def _methods() -> dict[str, tuple[str, str]]:
    from calibrant.methods import METHODS

    return {
        name: (", ".join(method.settings) or "-", method.meaning)
        for name, method in METHODS.items()
    }


def _calibrators() -> dict[str, tuple[str, str]]:
    from calibrant.calibrators import CALIBRATORS

    return {
        name: ("preserved" if calibrator.keeps_argmax else "may change", first_line(calibrator))
        for name, calibrator in CALIBRATORS.items()
    }


def _measures() -> dict[str, str]:
    from calibrant.curvature import MEASURES

    return {name: first_line(measure) for name, measure in MEASURES.items()}


def _shifts() -> dict[str, tuple[str, str]]:
    from calibrant.data.shifts import KINDS

    return {
        change.__name__: (f"1 to {len(strengths)}", first_line(change))
        for change, strengths in KINDS.items()
    }


FAMILIES: dict[str, Callable[[], Mapping[str, str | tuple[str, ...]]]] = {
    "metrics": _metrics,
    "losses": _losses,
    "calibrators": _calibrators,
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "measures": _measures,
    "shifts": _shifts,
    "examples": _examples,
}
# Columns between the name and the meaning.
COLUMNS = {
    "calibrators": ("predicted class",),
    "methods": ("settings",),
    "models": ("inputs",),
    "datasets": ("inputs",),
    "shifts": ("strengths",),
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
        found = FAMILIES[name]().items()
        rows = [(key, *([words] if isinstance(words, str) else words)) for key, words in found]
        show_table(("name", *COLUMNS.get(name, ()), "meaning"), rows)
