"""Every figure: a function that returns a matplotlib figure, all in one style, for papers."""

from calibrant.report.class_figures import class_figure, frequency_figure
from calibrant.report.classwise import classwise_diagrams
from calibrant.report.gamma_figure import gamma_figure
from calibrant.report.landscape import focal_landscape_figure
from calibrant.report.map_figure import map_figure
from calibrant.report.price_figure import price_figure
from calibrant.report.probe_figures import margin_figure, sharpness_figure
from calibrant.report.reliability import reliability_diagram
from calibrant.report.saving import save
from calibrant.report.scatter_figure import scatter_figure
from calibrant.report.shift_figure import shift_figure
from calibrant.report.spectrum_figure import spectrum_figure
from calibrant.report.training_figures import confidence_figure, curves_figure

__all__ = [
    "class_figure",
    "classwise_diagrams",
    "confidence_figure",
    "curves_figure",
    "focal_landscape_figure",
    "frequency_figure",
    "gamma_figure",
    "map_figure",
    "margin_figure",
    "price_figure",
    "reliability_diagram",
    "save",
    "scatter_figure",
    "sharpness_figure",
    "shift_figure",
    "spectrum_figure",
]
