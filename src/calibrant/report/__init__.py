"""Figures: `Predictions`, a history or readings of a probe -> matplotlib Figure."""

from calibrant.report.figures import (
    classwise_diagrams,
    confidence_figure,
    curves_figure,
    focal_landscape_figure,
    gamma_figure,
    margin_figure,
    price_figure,
    reliability_diagram,
    save,
    scatter_figure,
    sharpness_figure,
    spectrum_figure,
)

__all__ = [
    "classwise_diagrams",
    "confidence_figure",
    "curves_figure",
    "focal_landscape_figure",
    "gamma_figure",
    "margin_figure",
    "price_figure",
    "reliability_diagram",
    "save",
    "scatter_figure",
    "sharpness_figure",
    "spectrum_figure",
]
