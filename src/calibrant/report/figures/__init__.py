"""Figures for papers: `Predictions`, a history or readings -> matplotlib figure, in one style."""

from calibrant.report.figures.focal_landscape import focal_landscape_figure
from calibrant.report.figures.method_state import gamma_figure, multiplier_figure
from calibrant.report.figures.probe import margin_figure, scatter_figure, sharpness_figure
from calibrant.report.figures.reliability import classwise_diagrams, reliability_diagram
from calibrant.report.figures.spectrum import spectrum_figure
from calibrant.report.figures.style import save

__all__ = [
    "classwise_diagrams",
    "focal_landscape_figure",
    "gamma_figure",
    "margin_figure",
    "multiplier_figure",
    "reliability_diagram",
    "save",
    "scatter_figure",
    "sharpness_figure",
    "spectrum_figure",
]
