"""Reliability diagrams of every method, as trained and after temperature scaling; confidence."""

from collections.abc import Mapping

from calibrant.metrics import BinSums
from calibrant.report.charts.reliability import (
    BANDS,
    HISTOGRAM_KEY,
    PAIR_KEY,
    histogram,
    overlay,
    pair,
)
from calibrant.report.charts.svg import MOST, legend, plot, plots, shape_legend
from calibrant.report.saved import Group
from calibrant.report.sections.panel import STAGES, First, Panel, first_results


def reliability(group: Group, *, chosen: str = "") -> Panel | None:
    """All methods over one another, and each alone; of many, `chosen` has a band."""
    found = first_results(group)
    if not found:
        return None
    shown = dict(list(found.items())[:MOST])
    # In the same order and with the same colours, also where one has no calibrator.
    stages = (
        {name: each.before for name, each in shown.items()},
        {name: each.after or BinSums.zero() for name, each in shown.items()},
    )
    figures = [
        plot(words.capitalize(), _overlay(sums, words, chosen))
        for words, sums in zip(STAGES.values(), stages, strict=True)
        if any(each.count.any() for each in sums.values())
    ]
    seed = next(iter(found.values())).seed
    about = (
        "Accuracy of the test examples in 15 bins of confidence. On the diagonal, confidence "
        f"equals accuracy; below it the model is over-confident. Seed {seed}; temperatures are "
        "fitted to the validation split."
    )
    if len(found) > MOST:
        about += f" The first {MOST} of {len(found)} together; below is each alone."
    if len(shown) <= BANDS:
        about += " Bands are 95 % intervals of the accuracy."
    elif chosen in shown:
        about += f" The band is the 95 % interval of {chosen}; point at another for its own."
    html = plots(figures, beside=legend(list(shown), list(map(_errors, shown.values()))))
    return Panel("reliability", "Reliability diagrams", about, html + _diagrams(found))


def _overlay(diagrams: Mapping[str, BinSums], words: str, chosen: str) -> str:
    errors = {name: sums.ece for name, sums in diagrams.items() if sums.count.any()}
    best, worst = (end(errors, key=lambda name: errors[name]) for end in (min, max))
    about = f"Lowest ECE {errors[best]:.4f}, {best}; highest {errors[worst]:.4f}, {worst}."
    title = f"Reliability of {len(errors)} methods, {words}"
    return overlay(diagrams, title=title, about=about, chosen=chosen)


def _errors(each: First) -> str:
    after = "" if each.after is None else f" → {each.after.ece:.4f}"
    return f"ECE {each.before.ece:.4f}{after}"


def _diagrams(found: Mapping[str, First]) -> str:
    """One pair for each method, before and after; shown when opened."""
    figures = []
    for name, each in found.items():
        scaled = ""
        if each.scaling is not None:
            at_bound = "" if each.converged else ", at its bound"
            scaled = f", T = {each.scaling.temperature:.3g}{at_bound}"
        both = [("as trained", each.before), (f"temperature{scaled}", each.after)]
        note, few = _errors(each), len(found) <= MOST
        chart = pair(both, title=f"Reliability of {name}", about=note, titled=few)
        figures.append(plot(name, chart, note=note))
    about = (
        "Each bar is the accuracy of a bin; the coloured part is its gap to the mean confidence. "
        "Below: the share of examples in the bin. The ECE is the mean gap, weighted by that share."
    )
    return (
        "<details><summary>Each method alone, with the gap of each bin</summary>"
        f'<p class="note">{about}</p>{shape_legend(PAIR_KEY)}{plots(figures)}</details>'
    )


def histograms(group: Group) -> Panel | None:
    """A histogram of confidence for each method, as trained: correct and wrong predictions."""
    found, figures = first_results(group), []
    highest = 1.05 * max((float(each.fine.share.max()) for each in found.values()), default=1.0)
    for name, each in found.items():
        sums, total = each.fine, each.fine.count.sum()
        accuracy, confidence = sums.correct.sum() / total, sums.confidence.sum() / total
        note = f"accuracy {accuracy:.3f}, mean confidence {confidence:.3f}"
        title, few = f"Confidence of {name}", len(found) <= MOST
        chart = histogram(sums, highest=highest, title=title, about=note, titled=few)
        figures.append(plot(name, chart, note=note))
    if not figures:
        return None
    seed = next(iter(found.values())).seed
    about = (
        f"Share of the test examples by confidence, as trained, seed {seed}. Wrong predictions at "
        "high confidence are what makes a model over-confident. All charts have the same scale."
    )
    html = shape_legend(HISTOGRAM_KEY) + plots(figures)
    return Panel("confidence", "Confidence", about, html)
