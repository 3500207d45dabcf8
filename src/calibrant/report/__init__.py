"""Reports: the page of a study, the audit of a file of predictions, and figures for papers."""

from calibrant.deprecated import renamed_in
from calibrant.report.figures import *  # noqa: F403, all that `figures` lists
from calibrant.report.figures import __all__ as __all__

__getattr__ = renamed_in(__name__)
