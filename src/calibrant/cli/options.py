"""Options that several commands share, each defined once."""

import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class IntervalType(StrEnum):
    """How bootstrap values become an interval."""

    basic = "basic"
    percentile = "percentile"
    bca = "bca"


def within(option: str, least: int, most: float = math.inf) -> Callable[[int], int]:
    """Check an integer, with a message that does not change with the release of the parser."""

    def check(value: int) -> int:
        if value < least:
            raise ValueError(f"{option} must be at least {least:,}, got {value}")
        if value > most:
            raise ValueError(f"{option} must be at most {most:,}, got {value}")
        return value

    return check


READING, MEASURING, OUTPUT = "Input", "Measurement", "Output"

Logits = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Array or column that holds logits.", rich_help_panel=READING
    ),
]
Probs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Array or column that holds probabilities.", rich_help_panel=READING
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Array or column that holds labels.", rich_help_panel=READING
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Array or column to ignore, or a glob pattern; may be repeated.",
        show_default=False,
        rich_help_panel=READING,
    ),
]
Expansion = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="Largest allowed compression ratio of an array.",
        rich_help_panel=READING,
    ),
]
# More bins would mostly be empty, and their sums would fill the memory.
MOST_BINS = 10_000
Bins = Annotated[
    int,
    typer.Option(
        help=f"Bins of the confidence, at most {MOST_BINS:,}.",
        callback=within("--bins", 1, MOST_BINS),
        rich_help_panel=MEASURING,
    ),
]
Level = Annotated[
    float, typer.Option(help="Confidence level of intervals.", rich_help_panel=MEASURING)
]
Resamples = Annotated[
    int,
    typer.Option(
        help="Number of bootstrap resamples.",
        callback=within("--resamples", 1),
        rich_help_panel=MEASURING,
    ),
]
Seed = Annotated[
    int,
    typer.Option(help="Random seed.", callback=within("--seed", 0), rich_help_panel=MEASURING),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print only JSON to stdout.", rich_help_panel=OUTPUT),
]
Calibrator = Annotated[
    Path, typer.Argument(metavar="CALIBRATOR", help="A json file that `calibrant fit` wrote.")
]
