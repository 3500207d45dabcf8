"""Definitions of the numbers on a page: tips of table heads, and a list at its end."""

from collections.abc import Iterable
from dataclasses import replace

from calibrant.metrics import METRICS
from calibrant.metrics.registry import UNLISTED
from calibrant.report.charts.svg import escape
from calibrant.report.rendering import Panel
from calibrant.table_values import Table

INTERVAL = "interval"
TERMS = {
    "p-value": "The probability of a result at least as extreme as this one, if predictions are "
    "calibrated.",
    INTERVAL: "Bootstrap confidence interval: the range that covers the value for the whole "
    "population at the stated level.",
    "examples": "Labelled examples that the number was measured on.",
    "spiegelhalter": "Spiegelhalter's test: a z-test of whether the Brier score is that of "
    "calibrated predictions.",
    "consistency": "Consistency resampling: labels are drawn from the predictions themselves, and "
    "the p-value is how often their ECE is at least that of the data.",
    "cumulative": "Cumulative test: the range of the cumulative difference between probabilities "
    "and outcomes, against that of Brownian motion.",
    "null hypothesis": "What the test assumes; a small p-value is evidence against it.",
    "frequency": "The fraction of examples whose label is this class.",
    "mean probability": "The probability of this class, averaged over all examples.",
    "difference": "Mean probability minus frequency.",
    "class ECE": "The ECE of the probability of this class against its frequency.",
    "threshold": "Examples are flagged if their probability of the positive class is at least "
    "this.",
    "expected": "The sum of the probabilities of the flagged examples: how many positives the "
    "model promises.",
    "observed": "The number of flagged examples that are positive.",
    "precision": "The fraction of flagged examples that are positive.",
    "recall": "The fraction of positive examples that are flagged.",
    "calibrator": "The map fitted to validation predictions and applied before measuring.",
}
_ENTRIES = {
    key: entry for entry in (*METRICS.values(), *UNLISTED) for key in (entry.name, entry.label)
}


def definition(name: str) -> str:
    """One sentence for a metric, by its name or label, or for another term; else empty."""
    if name.endswith(f"% {INTERVAL}"):
        return TERMS[INTERVAL]
    entry = METRICS.get(name) or _ENTRIES.get(name)
    return TERMS.get(name, "") if entry is None else entry.definition or f"{entry.meaning}."


def defined(table: Table) -> Table:
    """The table with a definition as the tip of each head, and of each first cell, that has one."""
    columns = tuple(replace(each, tip=definition(each.title)) for each in table.columns)
    rows = tuple(
        (replace(row[0], tip=row[0].tip or definition(row[0].text)), *row[1:]) for row in table.rows
    )
    return replace(table, columns=columns, rows=rows)


def definitions(tables: Iterable[Table]) -> Panel:
    """All that the tables have definitions of, for paper and touch screens."""
    names = [
        name
        for table in tables
        for name in (*(each.title for each in table.columns), *(row[0].text for row in table.rows))
    ]
    if any(cell.interval for table in tables for row in table.rows for cell in row):
        names.append(INTERVAL)
    found = {definition(name): name for name in reversed(names) if definition(name)}
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>"
        for words, name in reversed(found.items())
    )
    about = "What each number on this page is."
    return Panel("definitions", "Definitions", about, f'<dl class="terms">{terms}</dl>')
