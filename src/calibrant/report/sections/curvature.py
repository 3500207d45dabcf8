"""Readings of a probe along training: calibration error beside sharpness, and margins."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

from calibrant.curvature.correlation import correlations
from calibrant.report import readings
from calibrant.report.charts.axes import thin
from calibrant.report.charts.dots import scatter
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import number_text, plot, plots, shape_legend
from calibrant.report.charts.tables import table
from calibrant.report.readings import ECE, EDGE, KINDS, MARGINS, SHARPNESS, Rows, column
from calibrant.report.saved import Group, Row
from calibrant.report.sections.panel import Panel, done_cells

# Classes of each line.
ROLES = {"train_ece": "s2 d0", "test_ece": "s7 d0", "margin_50": "s1 d0", "margin_0": "s4 d0"}
ROLES |= {"gauss_newton": "s1 d0", "hessian": "s5 d0", "batch_sharpness": "s3 d0"}
ROLES |= {"edge": "ink k2 d1", "val_ece": "s7 d0"}
CURVES = SHARPNESS | {"edge": EDGE}
AGAINST = "gauss_newton"
# Points of a scatter, and trainings that are drawn; the table has all of them.
POINTS, DRAWN = 30, 12
WIDTH, HEIGHT = 360.0, 210.0


def curvature(group: Group) -> Panel | None:
    """Error and sharpness along training, one against the other, and the margins, by method."""
    probed = {
        name: runs
        for name, cells in done_cells(group).items()
        if (runs := [cell.probe for cell in cells if cell.probe])
    }
    drawn = list(probed.items())[:DRAWN]
    figures = "".join(plots(_charts(name, runs[0])) for name, runs in drawn)
    if not figures:
        return None
    about = (
        "First seed, the same examples at each reading. Margins below 0 are wrong predictions. "
        "Above the edge of stability, gradient descent diverges on a quadratic. Any two quantities "
        "that drift are correlated: look at the curves before the coefficients."
    )
    if len(probed) > DRAWN:
        about += f" The first {DRAWN} of {len(probed)} are drawn."
    colours = {f"line {ROLES[name]}": label for name, label in (ECE | CURVES).items()}
    colours |= {"line s4 d0": MARGINS["margin_0"], "band s1": "25 % to 75 %, 5 % to 95 %"}
    html = _table(probed, group.axis) + shape_legend(colours) + figures
    return Panel("curvature", "Calibration and curvature", about, html)


def _charts(name: str, rows: Rows) -> list[str]:
    """All that can be drawn of one training."""
    rows = readings.without_far_edges({name: rows})[name]
    stacked = []
    for word, labels, under in (("ECE", ECE, ""), ("sharpness", CURVES, "step")):
        if series := _series(rows, labels):
            draw = partial(line_chart, zero=True, plain=word == "ECE", width=WIDTH)
            height = HEIGHT if under else HEIGHT - 16
            stacked.append(draw(series, f"{word} of {name}", under, y_name=word, height=height))
    along = plot(name, *stacked, note="along training") if stacked else ""
    return [each for each in (along, _against(name, rows), _margins(name, rows)) if each]


def _series(rows: Rows, labels: Mapping[str, str]) -> list[Series]:
    """Columns that have numbers, with a band of one standard error where there is one."""
    found, steps = [], readings.steps_of(rows)
    for name, label in labels.items():
        values, (low, high) = column(rows, name), readings.error_band(rows, name) or (None, None)
        if readings.has_numbers(values):
            found.append(Series(label, steps, values, low, high, role=ROLES[name]))
    return found


def _against(name: str, rows: Rows) -> str:
    """ECE on training data against sharpness, reading by reading, later ones darker."""
    places, x, y = readings.pairs_of(rows, AGAINST, "train_ece")
    if not places:
        return ""
    steps, said = readings.steps_of(rows), readings.correlation_text(rows, AGAINST, "train_ece")
    kept = thin(y, POINTS)
    texts = {at: [number_text(v) for v in (steps[places[at]], x[at], y[at])] for at in kept}
    tips = ["step {}: sharpness {}, ECE {}".format(*texts[at]) for at in kept]
    chart = scatter(
        [x[at] for at in kept],
        [y[at] for at in kept],
        tips,
        x_name="Gauss-Newton sharpness",
        y_name=ECE["train_ece"],
        title=f"Calibration error of {name} against sharpness",
        about=said,
        shades=[place / max(1, len(kept) - 1) for place in range(len(kept))],
        width=WIDTH,
        height=260,
    )
    return plot(name, chart, note=said)


def _margins(name: str, rows: Rows) -> str:
    """Median and smallest margin, and bands of quantiles."""
    series = _series(rows, MARGINS)
    if not series:
        return ""
    steps, empty = readings.steps_of(rows), [math.nan] * len(rows)
    bands = [
        Series(label, steps, empty, column(rows, low), column(rows, high), role="s1")
        for label, (low, high) in readings.MARGIN_BANDS.items()
    ]
    chart = line_chart(
        [*bands, *series],
        f"Margins of {name}",
        "step",
        y_name="margin",
        plain=True,
        guides=(0.0,),
        width=WIDTH,
        height=260,
    )
    return plot(name, chart, note="margins of the training examples")


def _table(probed: Mapping[str, Sequence[Sequence[Row]]], axis: str) -> str:
    """Correlations, mean over the seeds."""
    columns = {row_name for runs in probed.values() for rows in runs for row_name in rows[0]}
    pairs = [
        (f"{word}, {label}", error, kind)
        for error, label in ECE.items()
        for kind, word in KINDS.items()
        if {error, AGAINST} <= columns
    ]
    lines = []
    for name, runs in probed.items():
        held = [
            [{key: value for key, value in row.items() if value is not None} for row in rows]
            for rows in runs
        ]
        known = {key for rows in held for row in rows for key in row}
        if {AGAINST, *(error for _, error, _ in pairs)} <= known:
            means = [correlations(held, error, AGAINST, kind=kind).mean for _, error, kind in pairs]
            lines.append([name, len(runs), *map(readings.interval_text, means)])
    if not lines:
        return ""
    caption = "Correlation of ECE with Gauss-Newton sharpness along training, mean over the seeds"
    return table([axis, "seeds", *(head for head, _, _ in pairs)], lines, caption=caption)
