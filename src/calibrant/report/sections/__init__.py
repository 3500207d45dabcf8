"""Panels of a page: `Group -> Panel | None`, and one of the whole study.

A panel is None where there is nothing to show.
"""

from collections.abc import Callable

from calibrant.report.saved import Group, Saved
from calibrant.report.sections.classwise import classwise, long_tail
from calibrant.report.sections.curvature import curvature
from calibrant.report.sections.curves import curves
from calibrant.report.sections.landscape import landscape
from calibrant.report.sections.maps import maps
from calibrant.report.sections.method_state import gammas, multipliers
from calibrant.report.sections.panel import Panel
from calibrant.report.sections.reliability import histograms, reliability
from calibrant.report.sections.settings import settings
from calibrant.report.sections.shift import shift
from calibrant.report.sections.tradeoff import tradeoff

# In the order of the page.
PANELS: dict[str, Callable[[Group], Panel | None]] = {
    "tradeoff": tradeoff,
    "reliability": reliability,
    "curves": curves,
    "confidence": histograms,
    "classes": classwise,
    "tail": long_tail,
    "shift": shift,
    "maps": maps,
    "landscape": landscape,
    "gamma": gammas,
    "multipliers": multipliers,
    "curvature": curvature,
}
STUDY_PANELS: dict[str, Callable[[Saved], Panel | None]] = {"settings": settings}

__all__ = ["PANELS", "STUDY_PANELS", "Panel"]
