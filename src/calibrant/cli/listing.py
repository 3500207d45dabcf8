"""`calibrant list`: what there is, by name."""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from calibrant.cli.screen import say, show_table
from calibrant.cli.wording import first_line


def _metrics() -> dict[str, str]:
    from calibrant.metrics import METRICS

    return {name: first_line(metric) for name, metric in METRICS.items()}


def _losses() -> dict[str, str]:
    from calibrant.losses import LOSSES

    return {name: first_line(loss) for name, loss in LOSSES.items()}


def _datasets() -> dict[str, str]:
    from calibrant.data import SYNTHETIC

    return {name: synthetic.meaning for name, synthetic in SYNTHETIC.items()}


def _calibrators() -> dict[str, tuple[str, str]]:
    from calibrant.calibrators import CALIBRATORS

    return {
        name: ("kept" if calibrator.keeps_argmax else "may change", first_line(calibrator))
        for name, calibrator in CALIBRATORS.items()
    }


FAMILIES: dict[str, Callable[[], Mapping[str, str | tuple[str, ...]]]] = {
    "metrics": _metrics,
    "losses": _losses,
    "calibrators": _calibrators,
    "datasets": _datasets,
}
# Columns between the name and the meaning.
COLUMNS = {"calibrators": ("predicted class",)}


def listing(
    family: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(FAMILIES)}; all if left out.")
    ] = None,
) -> None:
    """List metrics, losses, calibrators and datasets, with what each one is."""
    if family is not None and family not in FAMILIES:
        raise ValueError(f"no family {family!r}; expected one of {', '.join(FAMILIES)}")
    for name in FAMILIES if family is None else [family]:
        say(name, style="bold")
        found = FAMILIES[name]().items()
        rows = [(key, *([words] if isinstance(words, str) else words)) for key, words in found]
        show_table(("name", *COLUMNS.get(name, ()), "meaning"), rows)
