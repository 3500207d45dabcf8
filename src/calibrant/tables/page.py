"""The page of the audit of a table."""

import math
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.report.charts.lines import Series as Line
from calibrant.report.charts.lines import line_chart
from calibrant.report.charts.reliability import gaps, overlay
from calibrant.report.charts.svg import plot, plots, shape_legend
from calibrant.report.charts.tables import html_table, sortable_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.reliability_points import POSITIVE, TOP_LABEL
from calibrant.report.rendering import Panel, render

if TYPE_CHECKING:
    from calibrant.tables.audit import TableAudit

# Slices with a diagram of their own.
DRAWN = 12


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
    panels = [
        Panel(
            "reliability",
            "Reliability",
            f"{terms.diagonal} {words}",
            shape_legend(terms.pair_key) + plots(figures),
        )
    ]
    panels += [each for each in (_slices(audit), _series(audit)) if each is not None]
    state = "calibrated" if audit.verdict.startswith("no miscalibration") else "miscalibrated"
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=audit.verdict[:1].upper() + audit.verdict[1:],
        state="miscalibrated" if ";" in audit.verdict else state,
        step=None,
        panels=panels,
        columns=[
            [Panel("metrics", "Metrics", "All from one scan of the table.", html_table(table))]
        ],
        terms=definitions([table]),
    )


def _slices(audit: "TableAudit") -> Panel | None:
    """The slices as a sortable table, and a small diagram of those with the most evidence."""
    if audit.slices is None:
        return None
    terms = POSITIVE if audit.sums.classes == 2 else TOP_LABEL
    figures = [
        plot(
            each.name,
            overlay(
                {each.name: each.sums.part(each.sums.focus)}, title=each.name, size=200, terms=terms
            ),
            note=f"{each.sums.rows:,} rows, ECE {each.ece.value:.4f}",
        )
        for each in audit.slices.slices[:DRAWN]
    ]
    about = (
        f"Ranked by evidence. P-values are corrected for {len(audit.slices.slices):,} slices. "
        f"{audit.slices.too_small:,} slices under {audit.slices.least:,} rows are not tested."
    )
    html = sortable_table(audit.slices_table()) + plots(figures)
    return Panel("slices", "Slices", about, html)


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
    about = (
        f"Windows of {audit.series.every}, from {windows[0].start:%Y-%m-%d %H:%M} UTC. The e-value "
        "may be looked at after every window without inflating false alarms."
    )
    return Panel("series", "Time", about, plots(figures) + html_table(audit.series_table()))
