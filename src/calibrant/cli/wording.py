"""Plain words for the metrics, short enough for a table of 80 columns."""

import inspect
import re
from collections.abc import Callable
from typing import Any

# The calibration error on which a comparison may rest. All others contain noise that depends on
# how confidences are spread: of two calibrated models the one reads lower than the other.
FAIR = "debiased_ece"


def first_line(thing: Callable[..., Any]) -> str:
    """First line of a docstring, which says what the thing means, without marks of $maths$.

    >>> first_line(first_line)
    'First line of a docstring, which says what the thing means, without marks of maths.'
    """
    return re.sub(r"[$\\]", "", (inspect.getdoc(thing) or "").partition("\n")[0])
