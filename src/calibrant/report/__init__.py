"""Figures: `Predictions`, rows of a study, a history or readings -> matplotlib Figure."""

from calibrant.report.figures import *  # noqa: F403, all that `figures` lists
from calibrant.report.figures import __all__ as __all__
