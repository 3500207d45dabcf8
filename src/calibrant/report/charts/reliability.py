"""Reliability diagrams: several over one another, or each with its gaps; confidence histograms."""

from collections.abc import Mapping, Sequence

import numpy as np

from calibrant.metrics import BinSums
from calibrant.report.charts.axes import Axes, Scale, band, curve
from calibrant.report.charts.svg import box, chart, element, hue, line, mark, text
from calibrant.report.reliability_points import TOP_LABEL, Points, Terms, points_of

FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
HALVES = (0.0, 0.5, 1.0)
# Bands of more diagrams over one another would hide the lines: then one is seen at a time.
BANDS = 5
# Size of one diagram of a pair, and of the histogram below it; of a chart that stands alone.
SIDE, LOW = 145.0, 36.0
SQUARE = 360.0
# Size of a diagram in a table.
TINY = 56.0
# Bins of a histogram.
FINE = 20


PAIR_KEY, HISTOGRAM_KEY = TOP_LABEL.pair_key, TOP_LABEL.histogram_key


def overlay(
    diagrams: Mapping[str, BinSums],
    *,
    title: str,
    about: str = "",
    chosen: str = "",
    size: float = SQUARE,
    terms: Terms = TOP_LABEL,
) -> str:
    """Accuracy against confidence of several, as lines with bands; of many, that of `chosen`.

    Bins with few examples are pooled.
    """
    left, top = 46.0, 24.0
    right, bottom = size - 12, size - 38
    axes = Axes(Scale(0, 1, left, right), Scale(0, 1, bottom, top))
    parts = [
        axes.draw(x_name=terms.score, y_name=terms.frequency, x_ticks=FIFTHS, y_ticks=FIFTHS),
        line(left, bottom, right, top, role="guide"),
    ]
    # Those without examples keep their colour.
    points = [
        (at, name, points_of(sums, merge=True))
        for at, (name, sums) in enumerate(diagrams.items())
        if sums.count.any()
    ]
    for at, name, own in points:
        shade = _band(axes, own, role=f"band {hue(at)}")
        spare = None if len(points) <= BANDS or name == chosen else "spare"
        parts.append(element("g", shade, data_series=str(at), class_=spare) if shade else "")
    parts += [
        element("g", *_joined(axes, own, name, hue(at), terms), data_series=str(at))
        for at, name, own in points
    ]
    return chart(*parts, width=size, height=size, title=title, about=about)


def small(sums: BinSums, *, title: str) -> str:
    """A diagram without axes for a cell of a table; bins with few examples are pooled."""
    axes = Axes(Scale(0, 1, 1, TINY - 1), Scale(0, 1, TINY - 1, 1))
    parts = [
        box(0.5, 0.5, TINY - 0.5, TINY - 0.5, role="guide"),
        line(1, TINY - 1, TINY - 1, 1, role="guide"),
    ]
    if sums.count.any():
        points = points_of(sums, merge=True)
        parts.append(_band(axes, points, role=f"band {hue(0)}"))
        x, y = points.confidence.tolist(), points.accuracy.tolist()
        parts.append(curve(axes, x, y, role=f"line {hue(0)}"))
    return chart(*parts, width=TINY, height=TINY, title=title)


def pair(
    diagrams: Sequence[tuple[str, BinSums | None]],
    *,
    title: str,
    about: str = "",
    titled: bool = True,
    side: float = SIDE,
    terms: Terms = TOP_LABEL,
) -> str:
    """Diagrams side by side, each with its gaps and the share of examples in each bin.

    None in place of sums leaves a diagram empty.
    """
    left, gap, top = 36.0, 22.0, 24.0
    parts = []
    for at, (name, sums) in enumerate(diagrams):
        x = Scale(0, 1, left + at * (side + gap), left + at * (side + gap) + side)
        parts.append(text(x.start, top - 7, name, role="name"))
        if sums is None or not sums.count.any():
            middle = (x.start + x.end) / 2
            parts.append(text(middle, top + side / 2, "none", role="note", anchor="middle"))
            continue
        axes = Axes(x, Scale(0, 1, top + side, top))
        parts.append(_diagram(axes, points_of(sums), terms, y_texts=at == 0, titled=titled))
    width = left + len(diagrams) * (side + gap) - gap + 12
    return chart(*parts, width=width, height=top + side + LOW + 48, title=title, about=about)


def gaps(sums: BinSums, *, title: str, about: str = "", terms: Terms = TOP_LABEL) -> str:
    """One diagram with its gaps, as large as others that stand alone."""
    axes = Axes(Scale(0, 1, 46, SQUARE - 12), Scale(0, 1, SQUARE - 38, 24))
    ticks = axes.draw(x_name=terms.score, y_name=terms.frequency, x_ticks=FIFTHS, y_ticks=FIFTHS)
    drawn = _bars(axes, points_of(sums), terms, titled=True)
    return chart(ticks, *drawn, width=SQUARE, height=SQUARE, title=title, about=about)


def bin_text(points: Points, at: int, terms: Terms = TOP_LABEL) -> str:
    """One bin in words."""
    share = points.count[at] / points.count.sum()
    return (
        f"{terms.score} {points.left[at]:.3f} to {points.right[at]:.3f}, "
        f"mean {points.confidence[at]:.4f}\n"
        f"{terms.frequency} {points.accuracy[at]:.4f} "
        f"({points.low[at]:.3f} to {points.high[at]:.3f})\n"
        f"{points.count[at]:,.10g} examples, {share:.1%}"
    )


def _band(axes: Axes, points: Points, *, role: str) -> str:
    """Intervals of bins with enough examples; those of the others would fill the chart."""
    # To the bounds of the outer bins.
    x = [points.left[0], *points.confidence, points.right[-1]]
    low, high = (
        np.pad(np.where(points.few, np.nan, side), 1, mode="edge").tolist()
        for side in (points.low, points.high)
    )
    return band(axes, x, low, high, role=role)


def _joined(axes: Axes, points: Points, name: str, look: str, terms: Terms) -> list[str]:
    """A line through bins with enough examples, and dots of all; faint if there are few."""
    x, y = points.confidence.tolist(), points.accuracy.tolist()
    parts = []
    if not points.few.all():
        strong = np.where(points.few, np.nan, points.accuracy).tolist()
        parts.append(curve(axes, x, strong, role=f"line {look}"))
    for at, position in enumerate(zip(x, y, strict=True)):
        dot = element(
            "circle", cx=axes.x(position[0]), cy=axes.y(position[1]), r=3, class_=f"dot {look}"
        )
        faint = "faint" if points.few[at] else ""
        parts.append(mark(dot, tip=f"{name}\n{bin_text(points, at, terms)}", role=faint))
    return parts


def _diagram(axes: Axes, points: Points, terms: Terms, *, y_texts: bool, titled: bool) -> str:
    """Bars of accuracy, their gaps to the confidence, whiskers; below, how many examples."""
    x, floor = axes.x, axes.y.start + 10 + LOW
    parts = [
        axes.draw(x_ticks=HALVES, y_ticks=HALVES, x_texts=False, y_texts=y_texts),
        line(x.start, floor, x.end, floor, role="axis"),
        *_bars(axes, points, terms, titled=titled, floor=floor),
    ]
    parts += [
        text(x(tick), floor + 14, f"{tick:g}", role="tick", anchor="middle", size=11)
        for tick in HALVES
    ]
    centre = (x.start + x.end) / 2
    parts.append(text(centre, floor + 29, terms.score, role="name", anchor="middle"))
    return "".join(parts)


def _bars(
    axes: Axes, points: Points, terms: Terms, *, titled: bool, floor: float | None = None
) -> list[str]:
    """A bar for each bin with its gap and whisker; shares of examples on a `floor` if given."""
    x, y = axes.x, axes.y
    share, parts = points.count / points.count.sum(), []
    below = None if floor is None else Scale(0, float(share.max()), floor, floor - LOW)
    for at, accuracy in enumerate(points.accuracy):
        confidence = points.confidence[at]
        left, right = x(points.left[at]) + 0.5, x(points.right[at]) - 0.5
        kind = "over" if confidence > accuracy else "under"
        middle, low, high = x(confidence), y(points.low[at]), y(points.high[at])
        shapes = [
            box(left, y(min(accuracy, confidence)), right, y(0), role="bar"),
            box(left, y(accuracy), right, y(confidence), role=kind),
            line(middle, low, middle, high, role="whisker"),
        ]
        if below is not None:
            shapes.append(box(left, below(share[at]), right, below.start, role="bar"))
        faint = "faint" if points.few[at] else ""
        parts.append(mark(*shapes, tip=bin_text(points, at, terms), role=faint, titled=titled))
    return [*parts, line(x.start, y.start, x.end, y.end, role="guide")]


def histogram(
    sums: BinSums,
    *,
    highest: float,
    title: str,
    about: str = "",
    titled: bool = True,
    width: float = SQUARE,
    height: float = 220,
    terms: Terms = TOP_LABEL,
) -> str:
    """How often each confidence occurs: bars of wrong predictions with correct ones above.

    Takes sums over bins of equal width, such as `FINE` ones. `highest` is the share at the top of
    the axis, the same for charts to compare.
    """
    x, y = Scale(0, 1, 46, width - 12), Scale(0, highest, height - 38, 24)
    total, bins = float(sums.count.sum()), len(sums.count)
    parts = [Axes(x, y).draw(x_name=terms.score, y_name="share of examples", x_ticks=FIFTHS)]
    for at in np.flatnonzero(sums.count):
        both, good = float(sums.count[at]), float(sums.correct[at])
        bad = max(0.0, both - good)
        left, end = x(at / bins) + 0.5, x((at + 1) / bins) - 0.5
        middle = y(bad / total)
        tip = (
            f"{terms.score} {at / bins:.2f} to {(at + 1) / bins:.2f}\n"
            f"{good:,.10g} {terms.events[0]}, {bad:,.10g} {terms.events[1]}: "
            f"{terms.frequency} {good / both:.4f}\n"
            f"{both / total:.1%} of all examples"
        )
        shapes = [box(left, middle, end, y(0), role="wrong")] if bad else []
        shapes += [box(left, y(both / total), end, middle, role="right")] if good else []
        parts.append(mark(*shapes, tip=tip, titled=titled))
    return chart(*parts, width=width, height=height, title=title, about=about)
