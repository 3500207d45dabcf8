"""Options that several commands share, each defined once."""

import math
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import calibrant.predictions


class IntervalType(StrEnum):
    """How bootstrap values become an interval."""

    basic = "basic"
    percentile = "percentile"
    bca = "bca"


def within(option: str, least: int, most: float = math.inf) -> Callable[[int | None], int | None]:
    """Check an integer, with a message that does not change with the release of the parser."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise ValueError(f"{option} must be at least {least:,}, got {value}")
        if value is not None and value > most:
            raise ValueError(f"{option} must be at most {most:,}, got {value}")
        return value

    return check


def panel(title: str) -> Callable[..., Any]:
    """Options that `--help` shows under a title of their own."""
    return partial(typer.Option, rich_help_panel=title)


output: Callable[..., Any] = partial(typer.Option, "--output", "-o")
reading, measuring, written = panel("Input"), panel("Measurement"), panel("Output")

Logits = Annotated[str | None, reading(metavar="NAME", help="Array or column that holds logits.")]
Probs = Annotated[
    str | None, reading(metavar="NAME", help="Array or column that holds probabilities.")
]
Labels = Annotated[str, reading(metavar="NAME", help="Array or column that holds labels.")]
Ignore = Annotated[
    list[str] | None,
    reading(metavar="NAME", help="Array or column to ignore, or a glob pattern; may be repeated."),
]
Expansion = Annotated[
    float, reading(metavar="X", help="Largest allowed compression ratio of an array.")
]
# More bins would mostly be empty, and the sums of bins or the values of resamples fill the memory.
MOST_BINS, MOST_RESAMPLES = 10_000, 1_000_000
Bins = Annotated[
    int,
    measuring(
        help=f"Bins of the confidence, at most {MOST_BINS:,}.",
        callback=within("--bins", 1, MOST_BINS),
    ),
]
Level = Annotated[float, measuring(help="Confidence level of intervals.")]
Resamples = Annotated[
    int,
    measuring(
        help="Number of bootstrap resamples.", callback=within("--resamples", 1, MOST_RESAMPLES)
    ),
]
Seed = Annotated[int, measuring(help="Random seed.", callback=within("--seed", 0))]
Json = Annotated[bool, written("--json", help="Print only JSON to stdout.")]
Calibrator = Annotated[
    Path, typer.Argument(metavar="CALIBRATOR", help="A json file that `calibrant fit` wrote.")
]


def load(
    source: str,
    logits: str | None,
    probs: str | None,
    labels: str,
    ignore: list[str] | None,
    max_expansion: float,
) -> "calibrant.predictions.Predictions":
    """Read predictions by the options above."""
    from calibrant.predictions import Predictions

    return Predictions.load(
        source,
        logits=logits,
        probs=probs,
        labels=labels,
        ignore=ignore or (),
        max_expansion=max_expansion,
    )
