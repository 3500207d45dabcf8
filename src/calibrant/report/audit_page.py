"""The page of an audit."""

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.metrics import BinSums, positive_sums
from calibrant.metrics.verdict import class_label
from calibrant.predictions import Predictions
from calibrant.report.charts.reliability import (
    FINE,
    POSITIVE,
    TOP_LABEL,
    Terms,
    histogram,
    overlay,
    pair,
)
from calibrant.report.charts.svg import MOST, escape, legend, plot, plots, shape_legend
from calibrant.report.charts.tables import html_table, sortable_table
from calibrant.report.formatting import shorten
from calibrant.report.rendering import Panel, render

if TYPE_CHECKING:
    from calibrant.report.audit import Audit
    from calibrant.report.model_audits import ModelAudits

# Classes that are listed.
LISTED = 30
# Side of the first diagram.
SIZE = 380


def audit_page(audit: "Audit") -> str:
    """One self-contained page as text."""
    measured = html_table(audit.metrics_table())
    measured += "".join(f'<p class="note">{escape(remark)}</p>' for remark in audit.remarks)
    about = (
        "Lower is better, except for accuracy, skill, AUC and precision; overconfidence, "
        "calibration in the large and intercept are best at 0, the slope at 1."
        if audit.summary.classes == 2
        else "Lower is better, except for accuracy; overconfidence is best at 0."
    )
    panels = _diagrams(audit)
    panels.append(Panel("metrics", "Metrics", about, measured, wide=False))
    if audit.tests:
        about = "A small p-value is evidence against calibration."
        html = html_table(audit.tests_table())
        panels.append(Panel("tests", "Tests of calibration", about, html, wide=False))
    if audit.summary.classes == 2:
        about = "Positives at or above each threshold: the sum of the probabilities, and the count."
        html = html_table(audit.thresholds_table())
        panels.append(Panel("thresholds", "Expected and observed", about, html, wide=False))
    if not audit.predictions.top_label_only:
        panels.append(_classes(audit))
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=audit.verdict,
        panels=panels,
    )


def models_page(found: "ModelAudits") -> str:
    """One self-contained page of several models."""
    binary = all(each.summary.classes == 2 for each in found.audits.values())
    terms = POSITIVE if binary else TOP_LABEL
    sums = {
        name: _sums(each.predictions, each.bins, binary=binary)
        for name, each in found.audits.items()
    }
    notes = [f"ECE {each.ece:.4f}" for each in sums.values()]
    shown = dict(list(sums.items())[:MOST])
    over = overlay(shown, title="Reliability of all models", size=SIZE, terms=terms)
    small = [
        plot(name, pair([("", each)], title=name, side=180, terms=terms), note=note)
        for (name, each), note in zip(sums.items(), notes, strict=True)
    ]
    about = f"On the diagonal, {terms.score} equals {terms.frequency}."
    said = "".join(
        f"<li><b>{escape(name)}</b>: {escape(each.verdict)}</li>"
        for name, each in found.audits.items()
        if each.verdict
    )
    marks = "Green: best of its column; bold: not significantly worse; grey: significantly worse."
    panels = [
        Panel("models", "Models", marks, sortable_table(found.table) + f"<ul>{said}</ul>"),
        Panel(
            "reliability",
            "Reliability diagrams",
            about,
            plots([plot("All models", over)]) + legend(list(shown), notes[:MOST]),
        ),
        Panel("each", "Each model", about, shape_legend(terms.pair_key) + plots(small)),
    ]
    name = ", ".join(map(str, found.audits))
    return render(
        "audit.html",
        name=shorten(name, 60),
        facts=found.facts,
        verdict=found.verdict,
        panels=panels,
    )


def _sums(predictions: Predictions, bins: int, *, binary: bool) -> BinSums:
    """Sums over bins of P(positive) of two classes, else of the confidence."""
    return positive_sums(predictions, bins=bins) if binary else BinSums.of(predictions, bins)


def _diagrams(audit: "Audit") -> list[Panel]:
    """Reliability of the positive class if there are two classes, then of the predicted class."""
    found, bins = audit.predictions, audit.bins
    panels = []
    if audit.summary.classes == 2:
        sums, fine = (_sums(found, each, binary=True) for each in (bins, FINE))
        name = class_label(audit.summary.class_biases[1].name)
        about = f"On the diagonal, the probability of {name} equals its frequency."
        title = f"Reliability of the probability of {name}"
        panels.append(_reliability("positive", title, about, sums, fine, POSITIVE))
    sums, fine = (_sums(found, each, binary=False) for each in (bins, FINE))
    about = "On the diagonal, confidence equals accuracy; below it the model is over-confident."
    title = "Reliability and confidence of the predicted class"
    return [*panels, _reliability("reliability", title, about, sums, fine, TOP_LABEL)]


def _reliability(
    key: str, title: str, about: str, sums: BinSums, fine: BinSums, terms: Terms
) -> Panel:
    """Frequency by probability, the gap of each bin, and how often each probability occurs."""
    words = f"ECE {sums.ece:.4f}"
    line = overlay({title: sums}, title="Reliability", about=words, size=SIZE, terms=terms)
    gaps = pair([("gaps", sums)], title="Gap of each bin", about=words, side=270, terms=terms)
    highest = 1.05 * float(fine.share.max())
    spread = histogram(
        fine, highest=highest, title=terms.score.capitalize(), width=330, height=210, terms=terms
    )
    figures = [
        plot("Reliability", line, note=words),
        plot("Bins", gaps),
        plot(terms.score.capitalize(), spread),
    ]
    html = shape_legend({**terms.pair_key, **terms.histogram_key}) + plots(figures)
    return Panel(key, title, about, html)


def _classes(audit: "Audit") -> Panel:
    """The classes whose probability is most off."""
    found = audit.classes_table()
    about = "Mean probability against frequency, and calibration error; the worst first."
    shown = replace(found, rows=found.rows[:LISTED])
    about += f" {LISTED} of {len(found.rows)} classes." if len(found.rows) > LISTED else ""
    return Panel("classes", "Classes", about, html_table(shown), wide=False)
