"""Histograms of confidence, of correct and wrong predictions."""

from calibrant.report.charts.histograms import stacked_bars
from calibrant.report.charts.svg import MOST, plot, shape_legend
from calibrant.report.saved import Group
from calibrant.report.sections.firsts import First, first_results
from calibrant.report.sections.panel import Panel, plots


def histograms(group: Group) -> Panel | None:
    """One histogram for each method, as trained."""
    found = first_results(group)
    if not found:
        return None
    highest = 1.05 * max(float(each.fine.share.max()) for each in found.values())
    figures = [
        _figure(name, each, highest, titled=len(found) <= MOST) for name, each in found.items()
    ]
    seed = next(iter(found.values())).seed
    about = (
        f"Share of the test examples by confidence, as trained, seed {seed}. Wrong predictions at "
        "high confidence are what makes a model over-confident. All charts have the same scale."
    )
    html = shape_legend({"right": "correct", "wrong": "wrong"}) + plots(figures)
    return Panel("confidence", "Confidence", about, html)


def _figure(name: str, each: First, highest: float, *, titled: bool) -> str:
    sums = each.fine
    total = sums.count.sum()
    accuracy, confidence = sums.correct.sum() / total, sums.confidence.sum() / total
    note = f"accuracy {accuracy:.3f}, mean confidence {confidence:.3f}"
    chart = stacked_bars(
        sums.correct.tolist(),
        (sums.count - sums.correct).clip(0).tolist(),
        highest=highest,
        title=f"Confidence of {name}",
        about=note,
        titled=titled,
    )
    return plot(name, chart, note=note)
