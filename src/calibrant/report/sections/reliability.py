"""Reliability diagrams of every method, as trained and after temperature scaling."""

from collections.abc import Mapping

from calibrant.metrics import BinSums
from calibrant.report.charts.reliability import BANDS, overlay, pair
from calibrant.report.charts.svg import MOST, legend, plot, shape_legend
from calibrant.report.reliability_points import FEW
from calibrant.report.saved import Group
from calibrant.report.sections.firsts import First, first_results
from calibrant.report.sections.panel import Panel, plots

KEY = {
    "bar": "accuracy",
    "over": "over-confident",
    "under": "under-confident",
    "whisker": "95 % interval",
    "bar faint": f"under {FEW} examples",
}


def reliability(group: Group, *, chosen: str = "") -> Panel | None:
    """All methods over one another; of many, `chosen` has a band."""
    found = first_results(group)
    if not found:
        return None
    shown = dict(list(found.items())[:MOST])
    before = {name: each.before for name, each in shown.items()}
    after = {name: each.after for name, each in shown.items() if each.after is not None}
    figures = [plot("As trained", _overlay(before, "as trained", chosen))]
    if after:
        # In the same order and with the same colours, also where one has no calibrator.
        kept = {name: after.get(name, BinSums.zero()) for name in shown}
        words = "after temperature scaling"
        figures.append(plot("After temperature scaling", _overlay(kept, words, chosen)))
    notes = [_errors(each) for each in shown.values()]
    seed = next(iter(found.values())).seed
    about = (
        "Accuracy of the test examples in 15 bins of confidence. On the diagonal, confidence "
        f"equals accuracy; below it the model is over-confident. Seed {seed}; temperatures are "
        "fitted to the validation split."
    )
    if len(found) > MOST:
        about += f" The first {MOST} of {len(found)}; the next panel has all."
    if len(shown) <= BANDS:
        about += " Bands are 95 % intervals of the accuracy."
    elif chosen in shown:
        about += f" The band is the 95 % interval of {chosen}; point at another for its own."
    html = plots(figures) + legend(list(shown), notes)
    return Panel("reliability", "Reliability diagrams", about, html)


def _overlay(diagrams: Mapping[str, BinSums], words: str, chosen: str) -> str:
    errors = {name: sums.ece for name, sums in diagrams.items() if sums.count.any()}
    worst = max(errors, key=lambda name: errors[name])
    best = min(errors, key=lambda name: errors[name])
    about = f"Lowest ECE {errors[best]:.4f}, {best}; highest {errors[worst]:.4f}, {worst}."
    title = f"Reliability of {len(errors)} methods, {words}"
    return overlay(diagrams, title=title, about=about, chosen=chosen)


def _errors(each: First) -> str:
    after = "" if each.after is None else f" → {each.after.ece:.4f}"
    return f"ECE {each.before.ece:.4f}{after}"


def diagrams(group: Group) -> Panel | None:
    """One pair for each method: before and after."""
    found = first_results(group)
    if not found:
        return None
    figures = []
    for name, each in found.items():
        scaled = "" if each.temperature is None else f", T = {each.temperature:.3g}"
        both = [("as trained", each.before), (f"temperature{scaled}", each.after)]
        note, few = _errors(each), len(found) <= MOST
        chart = pair(both, title=f"Reliability of {name}", about=note, titled=few)
        figures.append(plot(name, chart, note=note))
    about = (
        "Each bar is the accuracy of a bin; the coloured part is its gap to the mean confidence. "
        "Below: the share of examples in the bin. The ECE is the mean gap, weighted by that share."
    )
    html = shape_legend(KEY) + plots(figures)
    return Panel("diagrams", "Reliability diagram of each method", about, html)
