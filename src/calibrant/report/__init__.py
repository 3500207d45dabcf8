"""Figures: `Predictions -> matplotlib Figure`, drawn from sums per bin."""

from calibrant.report.classwise import classwise_diagrams
from calibrant.report.reliability import reliability_diagram
from calibrant.report.saving import save

__all__ = ["classwise_diagrams", "reliability_diagram", "save"]
