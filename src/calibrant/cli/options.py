"""Options that several commands share, each defined once."""

from enum import StrEnum
from typing import Annotated

import typer


class Method(StrEnum):
    """How resampled values become an interval."""

    basic = "basic"
    percentile = "percentile"
    bca = "bca"


READING, MEASURING, OUTPUT = "What to read", "How to measure", "What comes out"

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
Expansion = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="How many times its stored size a compressed array may grow.",
        rich_help_panel=READING,
    ),
]
Bins = Annotated[int, typer.Option(help="Bins of the confidence.", rich_help_panel=MEASURING)]
Level = Annotated[float, typer.Option(help="Coverage of intervals.", rich_help_panel=MEASURING)]
Resamples = Annotated[int, typer.Option(help="How often to resample.", rich_help_panel=MEASURING)]
Seed = Annotated[int, typer.Option(help="Seed of the resampling.", rich_help_panel=MEASURING)]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, and nothing else, to stdout.", rich_help_panel=OUTPUT),
]
