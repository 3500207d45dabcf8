"""A table as a value: columns, cells and marks. Terminal, page, LaTeX and Markdown draw it."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Mark = Literal["", "best", "equal", "worse", "unknown"]
# What marks mean: "equal" is not significantly worse than the best.
MARKS: dict[Mark, str] = {
    "best": "best",
    "equal": "not significantly worse",
    "worse": "significantly worse",
}


@dataclass(frozen=True)
class Column:
    """A title; numbers are aligned at the right, and of some metrics a higher one is better.

    The tip is shown when pointed at.
    """

    title: str
    number: bool = False
    higher_is_better: bool = False
    tip: str = ""


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
        text: what is shown.
        interval: shown after it.
        mark: how it compares with the best of its column.
        value: what rows are sorted by; empty where there is none.
        tip: shown when pointed at.
        picture: SVG that pages show instead of the text; not escaped.
    """

    text: str
    interval: str = ""
    mark: Mark = ""
    value: str = ""
    tip: str = ""
    picture: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, rows of cells, a caption, and which row is recommended."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    chosen: int | None = None

    @classmethod
    def of(
        cls,
        heads: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        numbers: Sequence[str] = (),
        caption: str = "",
    ) -> "Table":
        """A table of plain values; `numbers` are the titles of columns of numbers."""
        columns = tuple(Column(head, number=head in numbers) for head in heads)
        return cls(columns, tuple(tuple(Cell(str(e)) for e in row) for row in rows), caption)


def plain_html(table: Table) -> str:
    """A table as HTML without styles, for notebooks."""
    heads = "".join(f"<th>{html.escape(column.title)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell.text)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def range_text(low: float, high: float, sign: str = "") -> str:
    """Both ends of an interval; a dash where there is none.

    >>> range_text(0.1, 0.25), range_text(float("nan"), float("nan"))
    ('0.1000 to 0.2500', '-')
    """
    return "-" if math.isnan(low + high) else f"{low:{sign}.4f} to {high:{sign}.4f}"


def p_text(p_value: float, smallest: float = 0.0) -> str:
    """A p-value to four digits; a bound if it is the smallest that the test can give.

    >>> p_text(0.25), p_text(0.0), p_text(1e-9, 1e-9), p_text(0.000999, 0.000999)
    ('0.2500', '<0.0001', '<0.0001', '<=0.0010')
    """
    if math.isnan(p_value):
        return "-"
    if p_value < 0.0001:
        return "<0.0001"
    return f"<={smallest:.4f}" if p_value <= smallest else f"{p_value:.4f}"


def count_text(count: float) -> str:
    """A number of examples; a sum of weights that is not an integer has one decimal.

    >>> count_text(1234.0), count_text(826.8935223)
    ('1,234', '826.9')
    """
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
