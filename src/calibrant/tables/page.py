"""The page of the audit of a table."""

import math
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.report.charts.lines import Series as Line
from calibrant.report.charts.lines import line_chart
from calibrant.report.charts.reliability import gaps, overlay, small
from calibrant.report.charts.svg import plot, plots, shape_legend
from calibrant.report.charts.tables import html_table, sortable_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.reliability_points import POSITIVE, TOP_LABEL
from calibrant.report.rendering import Panel, render
from calibrant.table_values import Cell, Column, Table

if TYPE_CHECKING:
    from calibrant.tables.table_audit import TableAudit

# Slices on the page, each with a diagram.
DRAWN = 200


def table_page(audit: "TableAudit") -> str:
    """One self-contained page as text."""
    terms = POSITIVE if audit.sums.classes == 2 else TOP_LABEL
    own = audit.sums.part(audit.sums.focus)
    words = f"ECE {own.ece:.4f}, {own.bins} bins."
    figures = [
        plot("Reliability", overlay({audit.name: own}, title="Reliability", terms=terms)),
        plot("Gap of each bin", gaps(own, title="Gap of each bin", terms=terms)),
    ]
    table = defined(audit.metrics_table())
    about = " ".join([f"Intervals: {audit.intervals}.", *audit.notes])
    panels = [
        Panel(
            "reliability",
            "Reliability",
            f"{terms.diagonal} {words}",
            shape_legend(terms.pair_key) + plots(figures),
        )
    ]
    more = (_slices(audit), _worst(audit), _series(audit))
    panels += [each for each in more if each is not None]
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=audit.verdict[:1].upper() + audit.verdict[1:],
        state="calibrated" if audit.calibrated else "miscalibrated",
        step=None,
        panels=panels,
        columns=[[Panel("metrics", "Metrics", about, html_table(table))]],
        terms=definitions([table]),
    )


def _slices(audit: "TableAudit") -> Panel | None:
    """The slices as a sortable table, each with a small diagram."""
    if audit.slices is None:
        return None
    table = audit.slices_table(DRAWN)
    drawn = [
        (*row, Cell("", picture=small(each.sums.part(each.sums.focus), title=each.name)))
        for row, each in zip(table.rows, audit.slices.slices, strict=False)
    ]
    columns = (*table.columns, Column("reliability", number=True))
    about = f"{audit.slices.facts} Click a heading to sort."
    if len(audit.slices.slices) > DRAWN:
        about += f" The first {DRAWN} are shown; --json prints all."
    return Panel("slices", "Slices", about, sortable_table(Table(columns, tuple(drawn), "Slices")))


def _worst(audit: "TableAudit") -> Panel | None:
    """The slice that a search found, in both halves."""
    if audit.worst is None:
        return None
    found = audit.worst
    terms = POSITIVE if audit.sums.classes == 2 else TOP_LABEL
    halves = {"searched half": found.searched, "other half": found.confirmed}
    figures = [
        plot(
            name,
            overlay({name: each.sums.part(each.sums.focus)}, title=name, terms=terms),
            note=f"{each.sums.rows:,} rows, debiased ECE {each.debiased.value:.4f}",
        )
        for name, each in halves.items()
    ]
    return Panel("worst", "Worst slice found", found.facts, plots(figures))


def _series(audit: "TableAudit") -> Panel | None:
    """The ECE of each window, and the evidence of the drift test."""
    if audit.series is None:
        return None
    windows = audit.series.windows
    # Days since the first window.
    x = [(each.start - windows[0].start).total_seconds() / 86400 for each in windows]
    found = [each.metrics[audit.gate] for each in windows]
    ece = Line("ECE", x, [f.value for f in found], [f.low for f in found], [f.high for f in found])
    figures = [
        plot("ECE of each window", line_chart([ece], "ECE of each window", "days", zero=True))
    ]
    if audit.series.drift is not None:
        evidence = [value / math.log(10) for value in audit.series.drift.log_e_values]
        line = Line("log10 e-value", x, evidence)
        drawn = line_chart(
            [line], "Evidence of miscalibration", "days", plain=True, guides=[math.log10(20)]
        )
        figures.append(plot("Evidence (log10 e-value)", drawn, note="dashed: alarm at 5 %"))
    about = f"Windows of {audit.series.every}, from {windows[0].name} (UTC)."
    if audit.series.drift is not None:
        about += " You may look at the e-value after every window: 20 or more is an alarm at 5 %."
    return Panel("series", "Time", about, plots(figures) + html_table(audit.series_table()))
