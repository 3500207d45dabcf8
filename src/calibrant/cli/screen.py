"""What commands print: tables, numbers, JSON, progress."""

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.table
from rich import box
from rich.console import Console
from rich.text import Text

from calibrant.cli import printable
from calibrant.table_values import Cell, Mark, Table

if TYPE_CHECKING:
    from rich.progress import Progress

# Away from a terminal nothing forces a line to be short, and a cut one could not be searched.
UNLIMITED = 10_000
# Seconds of silence after which a plain line says what is going on.
PATIENCE = 2.0
# Characters between two columns, and the width up to which a column of text is not broken.
GAP, NARROW = 2, 24
SIGNS: dict[Mark, str] = {"best": "*", "equal": "=", "worse": " ", "unknown": "?"}
LEGEND = "* best, = not significantly worse, ? no comparison possible"


def console() -> Console:
    """Where results go: as wide as the terminal, or as wide as they are."""
    return Console(width=None if sys.stdout.isatty() else UNLIMITED, highlight=False, markup=False)


def say(line: str, style: str = "") -> None:
    """Print a line of the result; terminals wrap it, nothing cuts it."""
    console().print(Text(line, style=style), soft_wrap=True)


def show_table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table of plain values; `numbers` are the columns to align at the right."""
    print_table(Table.of(heads, rows, numbers=numbers))


def print_table(table: Table, *, keep: int = 0) -> list[str]:
    """Print a table; returns the titles of columns that were left out.

    A terminal that is too narrow leaves out the last columns, but for the first `keep`; without
    `keep` wide columns of text are broken into lines instead. A number is never cut.
    """
    titles = [printable(column.title) for column in table.columns]
    texts = [[_text(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(titles, *texts, strict=True)]
    screen = console()
    shown = len(titles)
    while keep and shown > keep and sum(widths[:shown]) + GAP * shown > screen.width:
        shown -= 1
    drawn = rich.table.Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False
    )
    least = list(widths[:shown])
    for index, column in enumerate(table.columns[:shown]):
        breaks = not keep and not column.number and widths[index] > NARROW
        least[index] = NARROW if breaks else widths[index]
        drawn.add_column(
            Text(titles[index]),
            justify="right" if column.number else "left",
            overflow="fold",
            no_wrap=not breaks,
        )
    for row in texts:
        drawn.add_row(*map(Text, row[:shown]))
    screen.width = max(screen.width, sum(least) + GAP * shown)
    with screen.capture() as printed:
        screen.print(drawn)
    # Cells are padded to the width of their column; nobody wants that in a file.
    print("\n".join(line.rstrip() for line in printed.get().splitlines()), end="\n\n")
    return titles[shown:]


def _text(cell: Cell) -> str:
    """A cell as text: its value, interval and mark."""
    text = printable(f"{cell.text} {cell.interval}".strip())
    return f"{text} {SIGNS[cell.mark]}" if cell.mark else text


def show_json(record: object) -> None:
    """Print a record as JSON that every parser takes: no NaN, no infinity."""
    print(json.dumps(finite(record), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """Copy plain values, with null in place of numbers that JSON does not have.

    >>> finite({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call once per step; moves a bar, or says one line if it takes long."""
    if not sys.stderr.isatty():
        with working(what):
            yield lambda: None
        return
    with progress_bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr what takes more than two seconds; a terminal shows a moving sign meanwhile."""
    if sys.stderr.isatty():
        with Console(stderr=True).status(what):
            yield
        return
    timer = threading.Timer(PATIENCE, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def progress_bar() -> "Progress":
    """A bar on stderr with steps done and time left, which vanishes at its end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    return Progress(*columns, console=Console(stderr=True), transient=True)
