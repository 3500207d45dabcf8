"""A comparison as text: CSV, LaTeX and Markdown."""

import csv
import io
import math
import re

from calibrant.report.comparison import Comparison

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
    "\N{DAGGER}": r"\textdagger{}",
    # After the end of a line these two would be taken for its options.
    "[": "{[}",
    "*": "{*}",
    **{each: f"\\{each}" for each in "{}$&#_%"},
}
LEGEND = "Bold: best. Italic: not significantly worse."


def as_csv(comparison: Comparison) -> str:
    """One line for each method and calibrator.

    Of each metric there are the mean, the ends of its interval, its mark, and the value of each
    seed, with all digits: the numbers are for programs. A name that begins with `=`, `+`, `-` or
    `@` gets an apostrophe before it, so that no program takes it for a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [comparison.axis, "calibrator"]
    for metric in comparison.metrics:
        heads += [metric, f"{metric} low", f"{metric} high", f"{metric} mark"]
        heads += [f"{metric} seed {seed}" for seed in comparison.seeds]
    writer.writerow(map(_harmless, heads))
    for line in comparison.combinations:
        cells = [_harmless(line.name), _harmless(line.calibrator)]
        for metric in comparison.metrics:
            reading = line.readings.get(metric)
            if reading is None:
                cells += [""] * (4 + len(comparison.seeds))
                continue
            mean = reading.interval
            cells += [*map(_exact, (mean.value, mean.low, mean.high)), reading.mark]
            cells += [_exact(reading.values.get(seed, math.nan)) for seed in comparison.seeds]
        writer.writerow(cells)
    return text.getvalue()


def as_latex(comparison: Comparison) -> str:
    """A `tabular` for the package booktabs, with T1 fonts."""
    table = comparison.as_table()
    styles = {"best": r"\textbf{%s}", "equal": r"\textit{%s}"}
    rows = []
    for row in table.rows:
        cells = [_latex(cell.text) for cell in row[:2]]
        for cell in row[2:]:
            ends = f" {{\\scriptsize {cell.interval}}}" if cell.interval else ""
            cells.append(styles.get(cell.mark, "%s") % cell.text + ends)
        rows.append(" & ".join(cells) + r" \\")
    begin = rf"\begin{{tabular}}{{ll{'r' * len(comparison.metrics)}}}"
    heads = " & ".join(_latex(column.title) for column in table.columns) + r" \\"
    lines = [f"% {LEGEND}", begin, r"\toprule", heads, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def as_markdown(comparison: Comparison) -> str:
    """A table of pipes, and how its numbers and marks were computed."""
    table = comparison.as_table()
    styles = {"best": "**", "equal": "*"}
    rows = [
        [_markdown(column.title) for column in table.columns],
        ["---:" if column.number else "---" for column in table.columns],
    ]
    for row in table.rows:
        cells = [_markdown(cell.text) for cell in row[:2]]
        for cell in row[2:]:
            style = styles.get(cell.mark, "")
            cells.append(f"{style}{cell.text}{style} {cell.interval}".strip())
        rows.append(cells)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", f"{comparison.note} {LEGEND}", ""])


def _exact(value: float) -> str:
    """All digits of a number; empty where there is none."""
    return repr(float(value)) if math.isfinite(value) else ""


def _one_line(name: str) -> str:
    """A name without line breaks and control characters."""
    kept = "".join(each if each.isprintable() else " " for each in name)
    return " ".join(kept.split())


def _harmless(name: str) -> str:
    text = _one_line(name)
    return f"'{text}" if text.startswith(FORMULA) else text


def _latex(name: str) -> str:
    return "".join(LATEX.get(each, each) for each in _one_line(name))


def _markdown(name: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|~$&])", r"\\\1", _one_line(name))
