"""Figures: `Predictions -> matplotlib Figure`, drawn from sums per bin."""

from calibrant.report.classwise import classwise_diagrams
from calibrant.report.landscape import focal_landscape_figure
from calibrant.report.reliability import reliability_diagram
from calibrant.report.saving import save

__all__ = ["classwise_diagrams", "focal_landscape_figure", "reliability_diagram", "save"]
