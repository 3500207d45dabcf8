"""Accuracy against calibration: a dot for every method with every calibrator."""

from calibrant.report.charts.dots import Dot, interval_dots
from calibrant.report.charts.svg import HUES, legend, plot, plots, shape_legend
from calibrant.report.comparison import NONE, Combination, compare
from calibrant.report.differences import Reading
from calibrant.report.formatting import name_of, value_with_interval
from calibrant.report.saved import Group
from calibrant.report.sections.panel import Panel

AGAINST = ("ece", "nll")


def tradeoff(group: Group) -> Panel | None:
    """Accuracy over ECE and over NLL, with the intervals of both."""
    comparison = compare(group.rows, axis=group.axis)
    names = list(dict.fromkeys(line.name for line in comparison.combinations))
    figures = []
    for metric in AGAINST:
        dots = []
        for line in comparison.combinations:
            error, accuracy = line.readings.get(metric), line.readings.get("accuracy")
            if error is not None and accuracy is not None:
                tip = "\n".join([str(line), _text(accuracy), _text(error)])
                dots.append((_dot(error), _dot(accuracy), _look(line, names), tip))
        if len(dots) > 1:
            label = name_of(metric)
            title = f"Accuracy against {label}"
            chart = interval_dots(dots, x_name=label, y_name="accuracy", title=title)
            figures.append(plot(title, chart))
    if not figures:
        return None
    about = (
        "Up and left is better: a higher accuracy at a lower error. Lines are 95 % intervals. "
        "Point at a dot for its method and calibrator."
    )
    key = {"dot all hollow": "without calibrator", "dot all": "with a calibrator"}
    # Colours of more methods would repeat.
    colours = legend(names) if len(names) <= HUES else ""
    html = plots(figures, beside=colours + shape_legend(key))
    return Panel("tradeoff", "Accuracy and calibration", about, html)


def _look(line: Combination, names: list[str]) -> str:
    hollow = " hollow" if line.calibrator == NONE else ""
    return f"dot s{names.index(line.name) % HUES + 1}{hollow}"


def _dot(reading: Reading) -> Dot:
    return Dot(reading.interval.value, reading.interval.low, reading.interval.high)


def _text(reading: Reading) -> str:
    return f"{name_of(reading.metric)} {value_with_interval(reading.interval)}"
