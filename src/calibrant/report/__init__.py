"""Figures: `Predictions` or a history -> matplotlib Figure."""

from calibrant.report.classwise import classwise_diagrams
from calibrant.report.gamma_figure import gamma_figure
from calibrant.report.landscape import focal_landscape_figure
from calibrant.report.price_figure import price_figure
from calibrant.report.reliability import reliability_diagram
from calibrant.report.saving import save

__all__ = [
    "classwise_diagrams",
    "focal_landscape_figure",
    "gamma_figure",
    "price_figure",
    "reliability_diagram",
    "save",
]
