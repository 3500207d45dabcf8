"""The page of an audit, and what a notebook shows of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibrant.metrics import METRICS, BinSums
from calibrant.metrics.verdict import class_label
from calibrant.report.charts.reliability import (
    FINE,
    SQUARE,
    gaps,
    histogram,
    overlay,
)
from calibrant.report.charts.svg import MOST, escape, inline, legend, plot, plots, shape_legend
from calibrant.report.charts.tables import MARK_KEY, html_table, sortable_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.formatting import shorten
from calibrant.report.reliability_points import POSITIVE, TOP_LABEL, Terms, diagram_sums
from calibrant.report.rendering import Panel, render
from calibrant.table_values import Table

if TYPE_CHECKING:
    from calibrant.report.audit import Audit
    from calibrant.report.model_audits import ModelAudits

# Classes that are listed.
LISTED = 30
TESTS = (
    "How likely are data like these if the predictions are calibrated? A p-value below 0.05 is "
    "evidence of miscalibration; a larger one does not prove calibration."
)


def audit_page(audit: "Audit") -> str:
    """One self-contained page as text."""
    about = _directions(audit.metrics)
    tables = [defined(audit.metrics_table())]
    html = html_table(tables[0])
    html += "".join(f'<p class="note">{escape(remark)}</p>' for remark in audit.remarks)
    measured, beside = Panel("metrics", "Metrics", about, html), []
    if audit.tests:
        tables.append(defined(audit.tests_table()))
        beside.append(Panel("tests", "Tests of calibration", TESTS, html_table(tables[-1])))
    if audit.summary.classes == 2:
        about = "Positives at or above each threshold: the sum of the probabilities, and the count."
        tables.append(defined(audit.thresholds_table()))
        html = html_table(tables[-1])
        beside.append(Panel("thresholds", "Expected and observed", about, html))
    if not audit.predictions.top_label_only:
        tables.append(defined(audit.classes_table()))
        beside.append(_classes(tables[-1]))
    return render(
        "audit.html",
        name=PurePath(audit.name).name,
        facts=audit.facts,
        verdict=_sentence(audit.verdict),
        state=audit.state or "",
        step=audit.next_step,
        panels=_diagrams(audit),
        columns=[[measured], beside],
        terms=definitions(tables),
    )


def _sentence(words: str) -> str:
    """The same with a capital at the start."""
    return words[:1].upper() + words[1:]


def _directions(names: Iterable[str]) -> str:
    """Which values of these metrics are better."""
    labels: dict[str, list[str]] = {"higher": [], "zero": [], "one": [], "lower": []}
    for name in names:
        labels[METRICS[name].best].append(METRICS[name].label)
    words = {"higher": "higher is better", "zero": "best at 0", "one": "best at 1"}
    said = [f"{', '.join(labels[best])}: {text}. " for best, text in words.items() if labels[best]]
    return "".join(map(_sentence, said)) + "All others: lower is better."


def models_page(found: "ModelAudits") -> str:
    """One self-contained page of several models."""
    terms = _terms(found.audits)
    sums = _all_sums(found.audits, terms)
    notes = [f"ECE {each.ece:.4f}" for each in sums.values()]
    shown = dict(list(sums.items())[:MOST])
    drawn = overlay(shown, title="Reliability of all models", terms=terms)
    figures = [plot("All models", drawn, note="with 95 % intervals")]
    figures += [
        plot(name, gaps(each, title=f"Reliability of {name}", terms=terms), note=note)
        for (name, each), note in zip(sums.items(), notes, strict=True)
    ]
    table = defined(found.table)
    diagrams = legend(list(shown), notes[:MOST]) + shape_legend(terms.pair_key) + plots(figures)
    about = "Each model, with tests of its difference to the best of each column."
    panels = [
        Panel("models", "Models", about, sortable_table(table) + MARK_KEY),
        Panel("verdicts", "Verdicts and next steps", "Each model, judged alone.", _steps(found)),
        Panel("reliability", "Reliability diagrams", terms.diagonal, diagrams),
    ]
    name = ", ".join(map(str, found.audits))
    states = {each.state for each in found.audits.values()}
    return render(
        "audit.html",
        name=shorten(name, 60),
        facts=found.facts,
        verdict=found.verdict,
        state=states.pop() or "" if len(states) == 1 else "unclear",
        step=None,
        panels=panels,
        columns=[],
        terms=definitions([table]),
    )


def audit_fragment(audit: "Audit") -> str:
    """The verdict, the metrics and a small diagram, for notebooks."""
    step = "" if audit.next_step is None else escape(str(audit.next_step)).replace("&#10;", "<br>")
    return (
        f"<p><b>{escape(audit.name)}</b>: {escape(audit.facts)}</p>"
        f"<p><b>{escape(audit.verdict)}</b></p><p>{step}</p>"
        f"{_small_diagram({audit.name: audit})}{html_table(defined(audit.metrics_table()))}"
    )


def models_fragment(found: "ModelAudits") -> str:
    """The verdict, the table of all models and a small diagram, for notebooks."""
    return (
        f"<p>{escape(found.facts)}</p><p><b>{escape(found.verdict)}</b></p>"
        f"{html_table(defined(found.table))}{_small_diagram(found.audits)}"
    )


def _small_diagram(audits: Mapping[str, "Audit"]) -> str:
    terms, shown = _terms(audits), dict(list(audits.items())[:MOST])
    sums = _all_sums(shown, terms)
    key = inline(legend(list(shown))) if len(shown) > 1 else ""
    return inline(overlay(sums, title="Reliability", size=260, terms=terms)) + key


def _terms(audits: Mapping[str, "Audit"]) -> Terms:
    binary = all(each.summary.classes == 2 for each in audits.values())
    return POSITIVE if binary else TOP_LABEL


def _all_sums(audits: Mapping[str, "Audit"], terms: Terms) -> dict[str, BinSums]:
    return {
        name: diagram_sums(each.predictions, terms, bins=each.bins) for name, each in audits.items()
    }


def _steps(found: "ModelAudits") -> str:
    """Verdict and next step of each model."""
    lines = []
    for name, each in found.audits.items():
        step = each.next_step
        if step is None:
            continue
        said = f"Next step: {escape(step.advice)}."
        if step.calibrator:
            said = f"Next step: <code>{escape(step.line)}</code><br>Expected: "
            said += f"{escape(step.expected)}."
        lines.append(
            f"<dt>{escape(name)}</dt><dd>{escape(_sentence(each.verdict))}.<br>{said}</dd>"
        )
    return f'<dl class="terms">{"".join(lines)}</dl>' if lines else ""


def _diagrams(audit: "Audit") -> list[Panel]:
    """Reliability of the positive class if there are two classes, then of the predicted class."""
    panels = []
    if audit.summary.classes == 2:
        title = (
            f"Reliability of the probability of {class_label(audit.summary.class_biases[1].name)}"
        )
        panels.append(_reliability("positive", title, audit, POSITIVE))
    title = "Reliability and confidence of the predicted class"
    return [*panels, _reliability("reliability", title, audit, TOP_LABEL)]


def _reliability(key: str, title: str, audit: "Audit", terms: Terms) -> Panel:
    """Frequency by probability, the gap of each bin, and how often each probability occurs."""
    sums, fine = (diagram_sums(audit.predictions, terms, bins=bins) for bins in (audit.bins, FINE))
    words = f"ECE {sums.ece:.4f}"
    highest = 1.05 * float(fine.share.max())
    spread = histogram(fine, highest=highest, title=terms.score, height=SQUARE, terms=terms)
    figures = [
        plot("Reliability", overlay({title: sums}, title=title, about=words, terms=terms)),
        plot("Gap of each bin", gaps(sums, title="Gap of each bin", about=words, terms=terms)),
        plot(f"Histogram of {terms.score}", spread),
    ]
    html = shape_legend({**terms.pair_key, **terms.histogram_key}) + plots(figures)
    return Panel(key, title, f"{terms.diagonal} {words}, {audit.bins} bins.", html)


def _classes(table: Table) -> Panel:
    """The classes whose probability is most off."""
    about = "Mean probability against frequency, and calibration error; the worst first."
    count = len(table.rows)
    about += f" {LISTED} of {count} classes." if count > LISTED else ""
    html = html_table(replace(table, rows=table.rows[:LISTED]))
    return Panel("classes", "Classes", about, html)
