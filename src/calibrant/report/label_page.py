"""The page of an audit of several labels, and what a notebook shows of it."""

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.report.charts.reliability import gaps, overlay, small
from calibrant.report.charts.svg import escape, legend, plot, plots, shape_legend
from calibrant.report.charts.tables import html_table, sortable_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.next_step import OUTPUT, NextStep
from calibrant.report.reliability_points import POSITIVE, diagram_sums
from calibrant.report.rendering import Panel, render
from calibrant.table_values import Cell, Column, Table

if TYPE_CHECKING:
    from calibrant.report.label_audit import LabelAudit

# Labels that are drawn over one another; rows of a notebook's table; diagrams in the page's table.
OVERLAID, LISTED, DRAWN = 4, 30, 200
PYTHON = "calibrant.calibrators.MultiLabelCalibrator.fit(multi)"


def label_page(audit: "LabelAudit") -> str:
    """One self-contained page as text."""
    averages = _averages(audit)
    about = (
        "Macro is the mean over labels, micro takes all entries together. Labels that are too "
        "high and too low can cancel, in micro and in means of signed metrics: see each label."
    )
    remarks = "".join(f'<p class="note">{escape(remark)}</p>' for remark in audit.remarks)
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=audit.verdict[:1].upper() + audit.verdict[1:],
        state=audit.state or "",
        step=_step(audit) if audit.state == "miscalibrated" else None,
        panels=[
            Panel("averages", "Macro and micro", about, html_table(averages) + remarks),
            _labels(audit),
            _diagrams(audit),
        ],
        columns=[],
        terms=definitions([averages, audit.table]),
    )


def _step(audit: "LabelAudit") -> NextStep:
    command = f"calibrant fit {audit.file} --multi-label -o {OUTPUT}" if audit.file else PYTHON
    return NextStep(f"fit a calibrator for the labels: {command}")


def label_fragment(audit: "LabelAudit") -> str:
    """The verdict, macro and micro, and the worst labels, for notebooks."""
    table = defined(audit.table)
    return (
        f"<p><b>{escape(audit.name)}</b>: {escape(audit.facts)}</p>"
        f"<p><b>{escape(audit.verdict)}</b></p>{html_table(_averages(audit))}"
        f"{html_table(replace(table, rows=table.rows[:LISTED]))}"
    )


def _averages(audit: "LabelAudit") -> Table:
    """Macro and micro without the last column, the meaning: heads and names have definitions."""
    table = defined(audit.averages_table())
    return Table(table.columns[:-1], tuple(row[:-1] for row in table.rows), table.caption)


def _labels(audit: "LabelAudit") -> Panel:
    """The labels as a sortable table, each with a small diagram."""
    table, rows = defined(audit.table), []
    for row, each in zip(table.rows[:DRAWN], audit.labels, strict=False):
        picture = ""
        if each.known:
            own = audit.multi.label(each.name)
            picture = small(diagram_sums(own, POSITIVE, bins=audit.bins), title=each.name)
        rows.append((*row, Cell("-", picture=picture)))
    columns = (*table.columns, Column("reliability", number=True))
    about = "Significantly miscalibrated labels first, then by debiased ECE. Click a head to sort."
    if len(audit.labels) > DRAWN:
        about += f" The first {DRAWN} are shown; --json prints all."
    shown = replace(table, columns=columns, rows=tuple(rows))
    return Panel("labels", "Labels", about, sortable_table(shown))


def _diagrams(audit: "LabelAudit") -> Panel:
    """Reliability of all entries together, and of the worst labels."""
    sums = diagram_sums(audit.multi.pooled(), POSITIVE, bins=audit.bins)
    worst = {
        each.name: diagram_sums(audit.multi.label(each.name), POSITIVE, bins=audit.bins)
        for each in audit.labels[:OVERLAID]
        if each.known
    }
    title, several = "All entries (micro)", f"First {len(worst)} labels of the table"
    figures = [
        plot(several, overlay(worst, title=several, terms=POSITIVE)),
        plot(title, gaps(sums, title=title, terms=POSITIVE)),
    ]
    html = legend(list(worst)) + shape_legend(POSITIVE.pair_key) + plots(figures)
    return Panel("reliability", "Reliability diagrams", POSITIVE.diagonal, html)
