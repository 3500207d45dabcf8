"""The page of an audit."""

from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.metrics import BinSums
from calibrant.predictions import Predictions
from calibrant.report.charts.reliability import (
    FINE,
    HISTOGRAM_KEY,
    PAIR_KEY,
    histogram,
    overlay,
    pair,
)
from calibrant.report.charts.svg import escape, plot, plots, shape_legend
from calibrant.report.charts.tables import html_table, table
from calibrant.report.rendering import Panel, render

if TYPE_CHECKING:
    from calibrant.report.audit import Audit

# Classes that are listed.
LISTED = 30


def audit_page(audit: "Audit") -> str:
    """One self-contained page as text."""
    measured = html_table(audit.metrics_table())
    measured += "".join(f'<p class="note">{escape(remark)}</p>' for remark in audit.remarks)
    measured += html_table(audit.tests_table()) if audit.tests else ""
    about = "Lower is better, except for accuracy; overconfidence is best at 0."
    panels = [
        _diagrams(audit.predictions, audit.bins),
        Panel("metrics", "Metrics", about, measured, wide=False),
        _classes(audit.worst_classes),
    ]
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=audit.verdict,
        panels=panels,
    )


def _diagrams(predictions: Predictions, bins: int) -> Panel:
    """Accuracy by confidence, and how often each confidence occurs."""
    sums, fine = BinSums.of(predictions, bins), BinSums.of(predictions, FINE)
    words = f"ECE {sums.ece:.4f}"
    line = overlay({"top label": sums}, title="Reliability", about=words, size=380)
    gaps = pair([("gaps", sums)], title="Gap of each bin", about=words, side=270)
    highest = 1.05 * float(fine.share.max())
    spread = histogram(fine, highest=highest, title="Confidence", width=330, height=210)
    figures = [
        plot("Reliability", line, note=words),
        plot("Bins", gaps),
        plot("Confidence", spread),
    ]
    about = "On the diagonal, confidence equals accuracy; below it the model is over-confident."
    html = shape_legend({**PAIR_KEY, **HISTOGRAM_KEY}) + plots(figures)
    return Panel("reliability", "Reliability and confidence", about, html)


def _classes(errors: dict[str, float]) -> Panel:
    """The classes with the largest calibration error."""
    lines = [[name, f"{error:.4f}"] for name, error in list(errors.items())[:LISTED]]
    about = "Calibration error of the probability of each class, the worst first."
    about += f" {LISTED} of {len(errors)} classes." if len(errors) > LISTED else ""
    html = table(("class", "ECE"), lines, caption="Classes")
    return Panel("classes", "Calibration error by class", about, html, wide=False)
