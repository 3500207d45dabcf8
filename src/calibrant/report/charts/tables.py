"""Tables as HTML."""

from collections.abc import Sequence

from calibrant.report.charts.svg import escape
from calibrant.table_values import MARKS, Cell, Table

# What the marks of a comparison look like.
MARK_KEY = (
    '<p class="key"><span><b>0.12</b> bold green: best value of the column</span>'
    "<span><strong>0.12</strong> bold: not significantly worse than the best</span>"
    "<span>0.12 grey: significantly worse, or no comparison possible</span></p>"
)


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str,
    folded: bool = False,
    texts: int = 1,
) -> str:
    """A table of plain values; the first `texts` columns are text, the others numbers."""
    held = Table.of(heads, rows, numbers=heads[texts:], caption=caption)
    return html_table(held, folded=folded)


def html_table(table: Table, *, folded: bool = False) -> str:
    """A table as HTML, all of it escaped; shown only when opened if `folded`."""
    heads = "".join(
        f'<th scope="col"{_kind(column.number)}{_tip(column.tip)}>{escape(column.title)}</th>'
        for column in table.columns
    )
    lines = "".join(f"<tr>{_row(table, row)}</tr>" for row in table.rows)
    # What opens a folded table says its caption already.
    seen = ' class="hidden"' if folded else ""
    body = (
        f'<div class="scroll"><table class="numbers"><caption{seen}>{escape(table.caption)}'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
    if not folded:
        return body
    return f'<details class="numbers"><summary>{escape(table.caption)}</summary>{body}</details>'


def sortable_table(table: Table, *, sorted_by: str = "") -> str:
    """A comparison as HTML: columns can be sorted, numbers have marks, the chosen row a bar.

    Rows come in the order of their numbers in the column `sorted_by`, those without one last. The
    script of the page sorts, filters by the words of the first two columns, and shows tips.
    """
    titles = [column.title for column in table.columns]
    order = list(range(len(table.rows)))
    if sorted_by in titles:
        at = titles.index(sorted_by)
        order.sort(key=lambda position: float(table.rows[position][at].value or "inf"))
    heads = []
    for column in table.columns:
        direction = "ascending" if column.title == sorted_by else "none"
        better = ' data-better="higher"' if column.higher_is_better else ""
        heads.append(
            f'<th scope="col"{_kind(column.number)}{_tip(column.tip)} aria-sort="{direction}"'
            f"{better}>"
            f'<button type="button">{escape(column.title)}</button></th>'
        )
    lines = []
    for position in order:
        row = table.rows[position]
        chosen = ' class="chosen"' if position == table.chosen else ""
        words = escape(" ".join(filter(None, (row[0].text, row[1].text, row[1].value))))
        cells = _row(table, row, note=" (named in the headline)" if chosen else "")
        lines.append(f'<tr data-place="{position}" data-words="{words}"{chosen}>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="compare"><caption class="hidden">'
        f"{escape(table.caption)}</caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row(table: Table, row: Sequence[Cell], *, note: str = "") -> str:
    """Cells of a row; the first is its name, with a note for those who do not see the bar."""
    name, *cells = row
    hidden = f'<span class="hidden">{escape(note)}</span>' if note else ""
    value = f' data-value="{escape(name.value)}"' if name.value else ""
    fields = [f'<th scope="row"{value}{_tip(name.tip)}>{escape(name.text)}{hidden}</th>']
    for column, cell in zip(table.columns[1:], cells, strict=True):
        value = f' data-value="{escape(cell.value)}"' if cell.value or cell.mark else ""
        tip = f' data-tip="{escape(cell.tip)}"' if cell.tip else ""
        start = f"<td{_kind(column.number, cell.mark)}{value}{tip}>"
        fields.append(f"{start}{_content(cell)}</td>")
    return "".join(fields)


def _content(cell: Cell) -> str:
    """The text of a cell; with a mark, what its colour says in words, and the interval."""
    if cell.picture:
        return cell.picture
    if not cell.mark and not cell.interval:
        return escape(cell.text)
    said = f'<span class="hidden"> ({MARKS[cell.mark]})</span>' if cell.mark in MARKS else ""
    ends = f' <span class="ends">{escape(cell.interval)}</span>' if cell.interval else ""
    return f'<span class="mean">{escape(cell.text)}</span>{said}{ends}'


def _kind(number: bool, mark: str = "") -> str:
    return f' class="{" ".join(filter(None, ("number", mark)))}"' if number else ""


def _tip(words: str) -> str:
    """The definition of a head; pages with a script show it as they show other tips."""
    return f' title="{escape(words)}"' if words else ""
