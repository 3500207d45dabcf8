"""Method state along training: gamma of the examples, multipliers of the classes."""

import math
from collections.abc import Sequence
from functools import partial

from calibrant.methods.gamma_history import SIGNS
from calibrant.report.charts.dots import scatter
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import number_text, plot, plots, shape_legend
from calibrant.report.readings import (
    GammaState,
    MultiplierState,
    column,
    gamma_state,
    has_numbers,
    multiplier_state,
)
from calibrant.report.reliability_points import FEW
from calibrant.report.saved import Group, Row
from calibrant.report.sections.panel import Panel, first_cells

# Classes whose multipliers are drawn one by one; of more, as a range.
CLASSES = 20
# Width of one of several charts side by side.
WIDTH = 280.0
HUES = {"right": "s3", "wrong": "s2"}


def gammas(group: Group) -> Panel | None:
    """Gamma along training, and by confidence in the last epoch."""
    figures, drawn = [], set()
    for name, cell in first_cells(group).items():
        state = gamma_state(cell.history)
        if state is not None:
            drawn |= {part for part, means in state.by_confidence.items() if has_numbers(means)}
            figures.append(_gamma_charts(name, cell.history, state))
    if not figures:
        return None
    about = (
        "First seed. Left: median gamma of the training examples, with a band from the 5 % to the "
        "95 % quantile. Right: mean gamma by confidence in the last epoch, for correctly and "
        f"wrongly classified examples, in bins with at least {FEW} examples. If the lines on the "
        "right are flat, one gamma for all examples would do."
    )
    colours = {"line s1": "median"}
    colours |= {f"line {hue}": part for part, hue in HUES.items() if part in drawn}
    return Panel(
        "gamma", "Gamma of the focal loss", about, shape_legend(colours) + plots(figures, free=True)
    )


def _gamma_notes(rows: Sequence[Row], state: GammaState) -> str:
    """Gamma in the last epoch, which lines are missing and why, and signs of failure."""
    notes = [f"last epoch {number_text(state.mean)} ± {number_text(state.std)}"]
    notes += [
        f"no line for {part} examples: fewer than {FEW} of them in every bin"
        for part, means in state.by_confidence.items()
        if not has_numbers(means)
    ]
    for sign, meaning in SIGNS.items():
        seen = column(rows, sign).count(1.0)
        if seen:
            notes.append(f"{sign} in {seen} of {len(rows)} epochs: {meaning}")
    return ". ".join(notes)


def _gamma_charts(name: str, rows: Sequence[Row], state: GammaState) -> str:
    epochs = [float(at) for at in range(1, len(rows) + 1)]
    first, last = number_text(state.median[0]), number_text(state.median[-1])
    words = f"Median {first} in the first epoch, {last} in the last."
    # Both on the same scale.
    draw = partial(line_chart, zero=True, plain=True, y_bounds=(0.0, state.highest), width=WIDTH)
    median = Series("median", epochs, state.median, state.low, state.high)
    title = f"Gamma of {name} along training"
    along = draw([median], title, "epoch", about=words, y_name="gamma")
    curves = []
    for part, means in state.by_confidence.items():
        centres = [(at + 0.5) / len(means) for at in range(len(means))]
        curves.append(Series(part, centres, means, role=f"{HUES[part]} d0"))
    title, x = f"Gamma of {name} by confidence, last epoch", "confidence"
    against = draw(curves, title, x, y_name="mean gamma", whole=False, x_bounds=(0.0, 1.0))
    return plot(name, along, against, note=_gamma_notes(rows, state), beside=True)


def multipliers(group: Group) -> Panel | None:
    """Multipliers of the classes along training, and by class frequency."""
    figures = []
    for name, cell in first_cells(group).items():
        state = multiplier_state(cell.history)
        if state is not None:
            record = cell.record or {}
            names = record.get("class_names") or [f"class {c}" for c in range(state.classes)]
            counts = record.get("class_counts") or []
            figures.append(_multiplier_charts(name, state, counts, names))
    if not figures:
        return None
    about = (
        "First seed. Left: the multiplier of each class along training, rare classes dark. Right: "
        "in the last epoch, against the number of training examples of the class. A flat line "
        "means that all classes need the same smoothing."
    )
    return Panel("multipliers", "Multipliers of the classes", about, plots(figures, free=True))


def _multiplier_charts(
    name: str, state: MultiplierState, counts: Sequence[int], names: Sequence[str]
) -> str:
    classes = range(state.classes)
    epochs = [float(at) for at in range(1, len(state.along) + 1)]
    known = counts if len(counts) == state.classes else []
    if len(classes) <= CLASSES:
        order = sorted(classes, key=lambda c: known[c] if known else 0)
        # From rare and dark to frequent and pale, in four steps.
        shade = {c: f"ink k{4 * rank // len(classes) + 1}" for rank, c in enumerate(order)}
        by_class = [[row[c] if c < len(row) else math.nan for row in state.along] for c in classes]
        series = [Series(names[c], epochs, by_class[c], role=shade[c]) for c in classes]
    else:
        low = [min(each, default=math.nan) for each in state.along]
        high = [max(each, default=math.nan) for each in state.along]
        mean = [math.fsum(each) / len(each) if each else math.nan for each in state.along]
        series = [Series("mean over the classes", epochs, mean, low, high, role="ink k1")]
    title = f"{state.name.capitalize()} of each class along training, {name}"
    draw = partial(line_chart, zero=True, plain=True, width=WIDTH)
    charts = [draw(series, title, "epoch", y_name=state.name)]
    notes = []
    for word, last in state.last.items():
        ends = f"{number_text(min(last))} to {number_text(max(last))}"
        notes.append(f"{word} in the last epoch {ends}")
        if known:
            chart = scatter(
                [float(max(1, count)) for count in known],
                last,
                [f"{names[c]}: {number_text(last[c])}, {known[c]:,} examples" for c in classes],
                x_name="training examples of the class",
                y_name=word,
                title=f"{word.capitalize()} by class frequency, {name}",
                about=notes[-1],
                zero=True,
                width=WIDTH,
            )
            charts.append(chart)
    return plot(name, *charts, note="; ".join(notes), beside=True)
