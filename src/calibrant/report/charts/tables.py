"""Small tables as HTML."""

from collections.abc import Sequence

from calibrant.report.charts.svg import escape


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str,
    folded: bool = False,
    texts: int = 1,
) -> str:
    """A table; what it holds is escaped.

    Args:
        head: of the columns.
        rows: as many entries each; the first is the name of the row.
        caption: what it shows.
        folded: shown only when opened.
        texts: how many columns, from the first, are text; the others are numbers.
    """
    top = "".join(
        f'<th scope="col"{_kind(at, texts)}>{escape(each)}</th>' for at, each in enumerate(head)
    )
    lines = []
    for row in rows:
        first, *others = row
        fields = "".join(
            f"<td{_kind(at, texts)}>{escape(each)}</td>" for at, each in enumerate(others, 1)
        )
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{fields}</tr>')
    # What opens a folded table says its caption already.
    seen = ' class="hidden"' if folded else ""
    body = (
        f'<table class="numbers"><caption{seen}>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )
    if not folded:
        return f'<div class="scroll">{body}</div>'
    return (
        f'<details class="numbers"><summary>{escape(caption)}</summary>'
        f'<div class="scroll">{body}</div></details>'
    )


def _kind(at: int, texts: int) -> str:
    return "" if at < texts else ' class="number"'
