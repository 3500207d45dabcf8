"""What methods learn beside the weights: gamma of each example, a price of each class."""

import math
from collections.abc import Mapping, Sequence

from calibrant.methods.gamma_history import SIGNS
from calibrant.report.charts.dots import scatter
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.scales import fitted
from calibrant.report.charts.svg import key, plot, shown
from calibrant.report.gamma_figure import NEEDED
from calibrant.report.points import FEW
from calibrant.report.price_figure import PRICES
from calibrant.report.saved import Group, Row
from calibrant.report.sections.panel import Panel, first_cells, plots
from calibrant.report.sections.readings import column, has_numbers, number, numbers

# Classes whose prices are drawn one by one; of more, as a range.
CLASSES = 20
# Of one of two charts beside each other.
WIDTH = 280.0
# Examples whose gamma is drawn apart, and the hue of their line.
SIDES = {"right": "s3", "wrong": "s2"}


def gammas(group: Group) -> Panel | None:
    """Gamma along training, and against confidence in the last epoch."""
    figures, drawn = [], set()
    for name, cell in first_cells(group).items():
        rows = cell.history
        if rows and all(column in row for row in rows for column in NEEDED):
            sides = _sides(rows[-1])
            drawn |= {part for part, means in sides.items() if has_numbers(means)}
            figures.append(_gamma_charts(name, rows, sides))
    if not figures:
        return None
    about = (
        "First seed. Left, the median gamma of the training examples, with a band about the middle "
        "nine tenths; right, its mean by confidence in the last epoch, of examples that were right "
        f"and wrong, where there are at least {FEW}. Level lines say that one gamma would do."
    )
    colours = {"line s1": "median"}
    colours |= {f"line {hue}": part for part, hue in SIDES.items() if part in drawn}
    return Panel("gamma", "The learnt gamma", about, key(colours) + plots(figures))


def _sides(last: Row) -> dict[str, list[float]]:
    """Mean gamma by confidence, of right and of wrong examples; NaN where there are few."""
    sides = {}
    for part in SIDES:
        means, counts = numbers(last.get(f"gamma_{part}")), numbers(last.get(f"count_{part}"))
        counts = counts or [math.inf] * len(means)
        sides[part] = [
            mean if count >= FEW else math.nan for mean, count in zip(means, counts, strict=False)
        ]
    return sides


def _gamma_notes(rows: Sequence[Row], sides: Mapping[str, Sequence[float]]) -> str:
    """Where gamma ended, which lines are missing and why, and what signs of failure there were."""
    mean, spread = (shown(number(rows[-1].get(f"gamma_{part}"))) for part in ("mean", "std"))
    notes = [f"last epoch {mean} ± {spread}"]
    notes += [
        f"no line of {part} examples: fewer than {FEW} of them at every confidence"
        for part, means in sides.items()
        if not has_numbers(means)
    ]
    for sign, meaning in SIGNS.items():
        seen = column(rows, sign).count(1.0)
        if seen:
            notes.append(f"{sign} in {seen} of {len(rows)} epochs: {meaning}")
    return ". ".join(notes)


def _gamma_charts(name: str, rows: Sequence[Row], sides: Mapping[str, Sequence[float]]) -> str:
    epochs = [float(at) for at in range(1, len(rows) + 1)]
    low, middle, high = (column(rows, f"gamma_{part}") for part in ("q05", "q50", "q95"))
    y = fitted([0, *high, *sides["right"], *sides["wrong"]], 0, 1, zero=True, plain=True)
    along = line_chart(
        [Series("median", epochs, middle, low, high)],
        title=f"Gamma of {name} along training",
        about=f"Median {shown(middle[0])} at first, {shown(middle[-1])} at the end.",
        x_name="epoch",
        y_name="gamma",
        y_scale=y,
        width=WIDTH,
    )
    curves = []
    for part, hue in SIDES.items():
        bins = len(sides[part])
        places = [(at + 0.5) / bins for at in range(bins)]
        curves.append(Series(part, places, sides[part], role=f"{hue} d0"))
    against = line_chart(
        curves,
        title=f"Gamma of {name} against confidence, last epoch",
        x_name="confidence",
        y_name="mean gamma",
        whole=False,
        x_ends=(0.0, 1.0),
        y_scale=y,
        width=WIDTH,
    )
    return plot(name, along, against, note=_gamma_notes(rows, sides), beside=True)


def prices(group: Group) -> Panel | None:
    """Multipliers of each class along training, and against how frequent it is."""
    figures = []
    for name, cell in first_cells(group).items():
        rows = cell.history
        found = [each for each in PRICES if rows and numbers(rows[-1].get(each))]
        record = cell.record or {}
        counts = record.get("class_counts") or []
        if found:
            values = [numbers(row.get(found[0])) for row in rows]
            classes = record.get("class_names") or [f"class {c}" for c in range(len(values[-1]))]
            figures.append(_price_charts(name, PRICES[found[0]], values, counts, classes))
    if not figures:
        return None
    about = (
        "First seed. Left, the multiplier of each class along training, rare classes dark; right, "
        "in the last epoch, against how many training examples the class has. On a level line all "
        "classes would have needed the same smoothing."
    )
    return Panel("prices", "Multipliers of the classes", about, plots(figures))


def _price_charts(
    name: str,
    word: str,
    values: Sequence[Sequence[float]],
    counts: Sequence[int],
    names: Sequence[str],
) -> str:
    classes = len(values[-1])
    epochs = [float(at) for at in range(1, len(values) + 1)]
    by_class = [[row[c] if c < len(row) else math.nan for row in values] for c in range(classes)]
    known = counts if len(counts) == classes else [0] * classes
    order = sorted(range(classes), key=lambda c: known[c])
    # From rare and strong to frequent and weak, in four steps.
    shade = {c: f"ink k{4 * rank // classes + 1}" for rank, c in enumerate(order)}
    if classes <= CLASSES:
        series = [Series(names[c], epochs, by_class[c], role=shade[c]) for c in range(classes)]
    else:
        low = [min(each, default=math.nan) for each in values]
        high = [max(each, default=math.nan) for each in values]
        mean = [math.fsum(each) / len(each) if each else math.nan for each in values]
        series = [Series("mean over the classes", epochs, mean, low, high, role="ink k1")]
    along = line_chart(
        series,
        title=f"{word.capitalize()} of each class along training, {name}",
        x_name="epoch",
        y_name=word,
        zero=True,
        plain=True,
        width=WIDTH,
    )
    last = values[-1]
    note = (
        f"last epoch {shown(min(last, default=math.nan))} to {shown(max(last, default=math.nan))}"
    )
    charts = [along]
    if len(counts) == classes:
        tips = [f"{names[c]}: {shown(last[c])}, {counts[c]:,} examples" for c in range(classes)]
        against = scatter(
            [float(max(1, count)) for count in counts],
            last,
            tips,
            x_name="training examples of the class",
            y_name=word,
            title=f"{word.capitalize()} against the frequency of the class, {name}",
            about=note,
            zero=True,
            plain_y=True,
            width=WIDTH,
        )
        charts.append(against)
    return plot(name, *charts, note=note, beside=True)
