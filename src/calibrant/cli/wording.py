"""Plain words for the metrics, short enough for a table of 80 columns."""

import inspect
import re
from collections.abc import Callable
from typing import Any

HINTS = {
    "accuracy": "right answers; more is better",
    "nll": "log score, in nats",
    "brier": "squared score, 0 to 2",
    "overconfidence": "mean gap, signed; 0 is best",
    "ece": "mean gap over bins",
    "debiased_ece": "ece less its noise",
    "adaptive_ece": "ece over bins of equal mass",
    "classwise_ece": "ece of every class, mean",
    "mce": "largest gap of a bin; noisy",
    "rmsce": "root mean square gap",
    "debiased_rmsce": "rmsce less its noise",
    "sece": "smoothed gap, bandwidth 0.01",
    "smece": "smoothed gap, no bins",
    "ks": "largest running gap, no bins",
    "simplex_ece": "gap of whole vectors",
    "aurc": "errors left if unsure drop out",
}
TESTS = {
    "spiegelhalter": "is the Brier score as calibration would have it?",
    "consistency": "is ece no more than noise would make it?",
}
HIGHER_IS_BETTER = frozenset({"accuracy"})
# Best at zero, from either side.
SIGNED = frozenset({"overconfidence"})
# About right answers as much as about confidence.
SCORES = frozenset({"accuracy", "nll", "brier", "aurc"})
# Proper scores: the truth has the best expected value, so miscalibration can only cost.
PROPER = ("nll", "brier")
# The calibration error on which a comparison may rest. All others contain noise that depends on
# how confidences are spread: of two calibrated models the one reads lower than the other.
FAIR = "debiased_ece"


def first_line(thing: Callable[..., Any]) -> str:
    """First line of a docstring, which says what the thing means, without marks of $maths$.

    >>> first_line(first_line)
    'First line of a docstring, which says what the thing means, without marks of maths.'
    """
    return re.sub(r"[$\\]", "", (inspect.getdoc(thing) or "").partition("\n")[0])


def hint(name: str, metric: Callable[..., Any]) -> str:
    """A few words on a metric; its docstring's first line if there are none yet."""
    return HINTS.get(name, first_line(metric))
