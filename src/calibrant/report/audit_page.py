"""The page of an audit: what one file of predictions says about its model."""

import math
from collections.abc import Sequence

from calibrant import metrics
from calibrant.metrics import BinSums
from calibrant.predictions import Predictions
from calibrant.report.charts.histograms import stacked
from calibrant.report.charts.reliability import overlay, pair
from calibrant.report.charts.svg import escape, key, plot
from calibrant.report.charts.tables import table
from calibrant.report.formatting import class_name
from calibrant.report.rendering import rendered
from calibrant.report.sections.firsts import FINE
from calibrant.report.sections.panel import Panel, plots
from calibrant.report.sections.reliability import KEY

# Classes that are listed.
LISTED = 30


def audit_page(
    predictions: Predictions,
    *,
    name: str,
    facts: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    verdict: str = "",
    remarks: Sequence[str] = (),
    bins: int = 15,
) -> str:
    """One self-contained page as text; the same predictions give the same bytes.

    Args:
        predictions: that were audited.
        name: of the file, for the title.
        facts: about it, in a line.
        heads: of the table of metrics.
        rows: of that table.
        verdict: in words; none without intervals.
        remarks: about metrics, below their table.
        bins: of the diagram.
    """
    # Words beside the name, numbers behind.
    top, *lines = [(row[0], row[-1], *row[1:-1]) for row in (heads, *rows)]
    measured = table(top, lines, caption="Every metric", texts=2)
    measured += "".join(f'<p class="note">{escape(remark)}</p>' for remark in remarks)
    panels = [
        _diagrams(predictions, bins),
        Panel("metrics", "Metrics", "Lower is better unless said.", measured, wide=False),
        _classes(predictions),
    ]
    return rendered(
        "audit.html",
        name=name,
        facts=facts,
        verdict=verdict,
        panels=[panel for panel in panels if panel is not None],
    )


def _diagrams(predictions: Predictions, bins: int) -> Panel:
    """Accuracy of each confidence, and how often each occurs."""
    sums, fine = BinSums.of(predictions, bins), BinSums.of(predictions, FINE)
    words = f"ECE {sums.ece:.4f}"
    line = overlay({"top label": sums}, title="Reliability", about=words, size=380)
    gaps = pair([("gaps", sums)], title="Gaps of each bin", about=words, side=270)
    right = fine.correct.tolist()
    wrong = (fine.count - fine.correct).tolist()
    highest = 1.05 * float(fine.share.max())
    spread = stacked(right, wrong, highest=highest, title="Confidence", width=330, height=210)
    figures = [
        plot("Reliability", line, note=words),
        plot("Bins", gaps),
        plot("Confidence", spread),
    ]
    both = {**KEY, "right": "right", "wrong": "wrong"}
    about = "On the diagonal a model is as often right as it says; below it is over-confident."
    return Panel("reliability", "Reliability and confidence", about, key(both) + plots(figures))


def _classes(predictions: Predictions) -> Panel | None:
    """Classes whose probabilities are off the most."""
    if predictions.classes < 2:
        return None
    errors = metrics.per_class_ece(predictions)
    names = [class_name(each) for each in predictions.class_names or map(str, range(len(errors)))]
    # Classes that never occur have no error.
    known = [at for at in range(len(errors)) if math.isfinite(errors[at])]
    order = sorted(known, key=lambda at: -errors[at])
    lines = [[names[at], f"{errors[at]:.4f}"] for at in order[:LISTED]]
    about = "Calibration error of the probability of each class, the worst first"
    about += f"; {LISTED} of {len(errors)}." if len(errors) > LISTED else "."
    html = table(("class", "ECE"), lines, caption="Classes")
    return Panel("classes", "Class by class", about, html, wide=False)
