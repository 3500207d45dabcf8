"""The table of a study as text: CSV, LaTeX and Markdown."""

import csv
import io
import math
import re
from collections.abc import Callable

from calibrant.report.formatting import digits, number, spread
from calibrant.report.gaps import Reading
from calibrant.report.table import Table

# A program that opens a table takes text that begins like this for a formula.
FORMULA = ("=", "+", "-", "@")
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # After the end of a line these two would be taken for its options.
    "[": "{[}",
    "*": "{*}",
    **{each: f"\\{each}" for each in "{}$&#_%"},
}
LEGEND = "best in bold, not significantly worse in italics"


def as_csv(table: Table) -> str:
    """One line for each method and calibrator.

    Of each metric there are the mean, the ends of its interval, its mark, and the value of each
    seed, with all digits: the numbers are for programs. A name that begins with `=`, `+`, `-` or
    `@` gets an apostrophe before it, so that no program takes it for a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [table.axis, "calibrator"]
    for metric in table.metrics:
        heads += [metric, f"{metric} low", f"{metric} high", f"{metric} mark"]
        heads += [f"{metric} seed {seed}" for seed in table.seeds]
    writer.writerow(map(_harmless, heads))
    for line in table.lines:
        cells = [_harmless(line.name), _harmless(line.calibrator)]
        for metric in table.metrics:
            reading = line.readings.get(metric)
            if reading is None:
                cells += [""] * (4 + len(table.seeds))
                continue
            mean = reading.interval
            cells += [*map(_exact, (mean.value, mean.low, mean.high)), reading.mark]
            cells += [_exact(reading.values.get(seed, math.nan)) for seed in table.seeds]
        writer.writerow(cells)
    return text.getvalue()


def as_latex(table: Table) -> str:
    """A `tabular` for the package booktabs, with T1 fonts."""

    def cell(reading: Reading) -> str:
        value = _rounded(reading)
        styles = {"best": r"\textbf", "equal": r"\textit"}
        styled = f"{styles[reading.mark]}{{{value}}}" if reading.mark in styles else value
        ends = spread(reading.interval)
        return f"{styled} {{\\scriptsize {ends}}}" if ends else styled

    heads = [table.axis, "calibrator", *table.metrics]
    lines = [
        f"% {LEGEND}",
        rf"\begin{{tabular}}{{ll{'r' * len(table.metrics)}}}",
        r"\toprule",
        " & ".join(map(_latex, heads)) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in _cells(table, _latex, cell)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def as_markdown(table: Table) -> str:
    """A table of pipes, and a line that says what its letters mean."""

    def cell(reading: Reading) -> str:
        value = _rounded(reading)
        style = {"best": "**", "equal": "*"}.get(reading.mark, "")
        return f"{style}{value}{style} {spread(reading.interval)}".strip()

    heads = [table.axis, "calibrator", *table.metrics]
    rows = [
        list(map(_markdown, heads)),
        ["---", "---", *("---:" for _ in table.metrics)],
        *_cells(table, _markdown, cell),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", f"{table.note} {LEGEND.capitalize()}.", ""])


def _cells(
    table: Table, escaped: Callable[[str], str], cell: Callable[[Reading], str]
) -> list[list[str]]:
    """Texts of each line; a dash where there is no value."""
    return [
        [
            escaped(line.name),
            escaped(line.calibrator),
            *(
                cell(line.readings[metric]) if metric in line.readings else "-"
                for metric in table.metrics
            ),
        ]
        for line in table.lines
    ]


def _rounded(reading: Reading) -> str:
    """The mean with the digits that its interval carries."""
    interval = reading.interval
    return number(interval.value, digits(interval.low, interval.high))


def _exact(value: float) -> str:
    """All digits of a number; empty where there is none."""
    return repr(float(value)) if math.isfinite(value) else ""


def _one_line(name: str) -> str:
    """A name without breaks and control letters."""
    kept = "".join(each if each.isprintable() else " " for each in name)
    return " ".join(kept.split())


def _harmless(name: str) -> str:
    text = _one_line(name)
    return f"'{text}" if text.startswith(FORMULA) else text


def _latex(name: str) -> str:
    return "".join(LATEX.get(each, each) for each in _one_line(name))


def _markdown(name: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|~$&])", r"\\\1", _one_line(name))
