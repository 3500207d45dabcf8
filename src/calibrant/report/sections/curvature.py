"""What a probe read: calibration beside sharpness, and the margins, along training."""

import math
from collections.abc import Mapping, Sequence

from calibrant.curvature.correlation import LEAST, Kind, correlation, correlations
from calibrant.metrics import Interval
from calibrant.report.charts.dots import scatter
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.paths import thinned
from calibrant.report.charts.svg import key, plot, shown
from calibrant.report.charts.tables import table
from calibrant.report.saved import Group, Row
from calibrant.report.sections.panel import Panel, done_cells, plots
from calibrant.report.sections.readings import column, has_numbers

Parts = Mapping[str, tuple[str, str]]

# Label and classes of each column.
ECE: Parts = {"train_ece": ("ECE, training", "s2 d0"), "test_ece": ("ECE, test", "s7 d0")}
ECE = {**ECE, "val_ece": ("ECE, validation", "s7 d0")}
SHARPNESS: Parts = {
    "gauss_newton": ("Gauss-Newton", "s1 d0"),
    "hessian": ("Hessian", "s5 d0"),
    "batch_sharpness": ("batch sharpness", "s3 d0"),
    "edge": ("edge of stability", "ink k2 d1"),
}
MARGINS: Parts = {"margin_50": ("median", "s1 d0"), "margin_0": ("smallest", "s4 d0")}
KINDS: dict[str, Kind] = {"Pearson": "pearson", "Spearman": "spearman"}
AGAINST = "gauss_newton"
# An edge further above all sharpness than this would only press the curves together.
EDGE_WITHIN = 100
# Points of a scatter, and trainings that are drawn; the table has all of them.
POINTS, DRAWN = 30, 12
WIDTH, HEIGHT = 300.0, 175.0


def curvature(group: Group) -> Panel | None:
    """Error and sharpness over steps, one against the other, and the margins, method by method."""
    probed = {
        name: runs
        for name, cells in done_cells(group).items()
        if (runs := [cell.probe for cell in cells if cell.probe])
    }
    if not probed:
        return None
    drawn = list(probed.items())[:DRAWN]
    figures = "".join(plots(_charts(name, runs[0])) for name, runs in drawn)
    if not figures:
        return None
    about = (
        "Read on the same examples along the training of the first seed: where sharpness rises "
        "with the calibration error, both follow the smallest margins (below 0, answers are "
        "wrong). Beyond the edge of stability plain descent diverges on a quadratic. Any two "
        "drifts correlate: see the curves before the coefficients."
    )
    if len(probed) > DRAWN:
        about += f" Drawn are the first {DRAWN} of {len(probed)}."
    colours = {f"line {look}": label for label, look in {**ECE, **SHARPNESS}.values()}
    colours |= {"line s4 d0": "smallest margin", "band s1": "middle half and nine tenths"}
    html = _table(probed, group.axis) + key(colours) + figures
    return Panel("curvature", "Calibration and curvature", about, html)


def _charts(name: str, rows: Sequence[Row]) -> list[str]:
    """All that can be drawn of one training."""
    steps = column(rows, "step")
    steps = steps if all(map(math.isfinite, steps)) else [float(at) for at in range(len(rows))]
    found = []
    stacked = [
        line_chart(
            series,
            title=f"{word} of {name}",
            x_name=under,
            y_name=word,
            zero=True,
            plain=word == "ECE",
            width=WIDTH,
            height=HEIGHT if under else HEIGHT - 16,
        )
        for word, parts, under in (("ECE", ECE, ""), ("sharpness", SHARPNESS, "step"))
        if (series := _series(rows, steps, parts))
    ]
    if stacked:
        found.append(plot(name, *stacked, note="along training"))
    against = _against(name, rows, steps)
    if against:
        found.append(against)
    margins = _margins(name, rows, steps)
    if margins:
        found.append(margins)
    return found


def _series(rows: Sequence[Row], steps: Sequence[float], parts: Parts) -> list[Series]:
    """Columns that have numbers, with a band of one standard error where there is one."""
    highest = max(
        (v for name in parts if name != "edge" for v in column(rows, name) if math.isfinite(v)),
        default=math.inf,
    )
    found = []
    for name, (label, look) in parts.items():
        values, errors = column(rows, name), column(rows, f"{name}_error")
        if name == "edge":
            values = [v if v <= EDGE_WITHIN * highest else math.nan for v in values]
        if not has_numbers(values):
            continue
        low = high = None
        if has_numbers(errors):
            low = [max(0.0, v - e) for v, e in zip(values, errors, strict=True)]
            high = [v + e for v, e in zip(values, errors, strict=True)]
        found.append(Series(label, steps, values, low, high, role=look))
    return found


def _against(name: str, rows: Sequence[Row], steps: Sequence[float]) -> str:
    """The training error against sharpness, reading by reading, later ones stronger."""
    x, y = column(rows, AGAINST), column(rows, "train_ece")
    pairs = [at for at in range(len(rows)) if math.isfinite(x[at]) and math.isfinite(y[at])]
    if not pairs:
        return ""
    said = "fewer than 3 readings"
    if len(pairs) >= LEAST:
        sides = [[values[at] for at in pairs] for values in (x, y)]
        bars = {word: correlation(*sides, kind=kind) for word, kind in KINDS.items()}
        said = ", ".join(f"{word} {_words(bar)}" for word, bar in bars.items())
    kept = [pairs[at] for at in thinned([y[at] for at in pairs], POINTS)]
    chart = scatter(
        [x[at] for at in kept],
        [y[at] for at in kept],
        [f"step {shown(steps[at])}: sharpness {shown(x[at])}, ECE {shown(y[at])}" for at in kept],
        x_name="Gauss-Newton sharpness",
        y_name="ECE, training",
        title=f"Calibration error of {name} against sharpness",
        about=said,
        shades=[place / max(1, len(kept) - 1) for place in range(len(kept))],
        joined=True,
        width=WIDTH,
        height=260,
    )
    return plot(name, chart, note=said)


def _margins(name: str, rows: Sequence[Row], steps: Sequence[float]) -> str:
    """Median and smallest margin, and bands of the middle half and nine tenths."""
    series = _series(rows, steps, MARGINS)
    if not series:
        return ""
    empty = [math.nan] * len(rows)
    bands = [
        Series(label, steps, empty, column(rows, low), column(rows, high), role="s1")
        for label, low, high in (
            ("middle nine tenths", "margin_5", "margin_95"),
            ("middle half", "margin_25", "margin_75"),
        )
    ]
    chart = line_chart(
        [*bands, *series],
        title=f"Margins of {name}",
        x_name="step",
        y_name="margin",
        plain=True,
        guides=(0.0,),
        width=WIDTH,
        height=260,
    )
    return plot(name, chart, note="margins of the training examples")


def _table(probed: Mapping[str, Sequence[Sequence[Row]]], axis: str) -> str:
    """Correlations over the seeds."""
    columns = {row_name for runs in probed.values() for rows in runs for row_name in rows[0]}
    pairs = [
        (f"{word}, {part}", error, kind)
        for error, part in (
            ("train_ece", "training"),
            ("val_ece", "validation"),
            ("test_ece", "test"),
        )
        for word, kind in KINDS.items()
        if {error, AGAINST} <= columns
    ]
    lines = []
    for name, runs in probed.items():
        held = [[{key: value for key, value in row.items() if value is not None} for row in rows]
                for rows in runs]  # fmt: skip
        known = {key for rows in held for row in rows for key in row}
        if {AGAINST, *(error for _, error, _ in pairs)} <= known:
            bars = [correlations(held, error, AGAINST, kind=kind).mean for _, error, kind in pairs]
            lines.append([name, len(runs), *map(_words, bars)])
    if not lines:
        return ""
    caption = "Correlation of ECE with Gauss-Newton sharpness along training, mean over the seeds"
    return table([axis, "trainings", *(head for head, _, _ in pairs)], lines, caption=caption)


def _words(bar: Interval) -> str:
    if math.isnan(bar.value):
        return "none"
    if math.isnan(bar.low):
        return f"{bar.value:.2f}"
    return f"{bar.value:.2f} [{bar.low:.2f}, {bar.high:.2f}]"
