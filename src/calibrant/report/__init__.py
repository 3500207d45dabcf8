"""Reports: the page of a study, the audit of a file of predictions, and figures for papers.

Figures are imported at the first access, so that an audit does not load them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.deprecated import renamed_in

if TYPE_CHECKING:
    from calibrant.report.figures import (
        classwise_diagrams,
        focal_landscape_figure,
        gamma_figure,
        margin_figure,
        multiplier_figure,
        reliability_diagram,
        save,
        scatter_figure,
        sharpness_figure,
        spectrum_figure,
    )

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("calibrant.report.figures"), name)
    return renamed_in(__name__)(name)
