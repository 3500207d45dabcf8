"""How often each confidence occurs, right and wrong answers over one another."""

from collections.abc import Sequence

from calibrant.report.charts.axes import Axes
from calibrant.report.charts.scales import Scale
from calibrant.report.charts.svg import box, chart, mark

HALVES = (0.0, 0.5, 1.0)


def stacked_bars(
    right: Sequence[float],
    wrong: Sequence[float],
    *,
    highest: float,
    title: str,
    about: str = "",
    titled: bool = True,
    width: float = 250,
    height: float = 165,
) -> str:
    """Bars of wrong predictions with correct ones above, in bins of equal width over [0, 1].

    Takes the number of examples of each bin, or their total weight. `highest` is the share at the
    top of the axis, the same for charts to compare.
    """
    x, y = Scale(0, 1, 40, width - 10), Scale(0, highest, height - 38, 22)
    axes = Axes(x, y)
    total = sum(right) + sum(wrong)
    bins = len(right)
    parts = [axes.draw(x_name="confidence", y_name="share", x_ticks=HALVES)]
    for at, (good, bad) in enumerate(zip(right, wrong, strict=True)):
        if not good + bad:
            continue
        left, end = x(at / bins) + 0.5, x((at + 1) / bins) - 0.5
        middle, top = y(bad / total), y((good + bad) / total)
        tip = (
            f"confidence {at / bins:.2f} to {(at + 1) / bins:.2f}\n"
            f"{good:,.10g} correct, {bad:,.10g} wrong: accuracy {good / (good + bad):.4f}\n"
            f"{(good + bad) / total:.1%} of all examples"
        )
        shapes = [box(left, middle, end, y(0), role="wrong")] if bad else []
        shapes += [box(left, top, end, middle, role="right")] if good else []
        parts.append(mark(*shapes, tip=tip, titled=titled))
    return chart(*parts, width=width, height=height, title=title, about=about)
