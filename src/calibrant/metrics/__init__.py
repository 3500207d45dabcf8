"""Metrics: `Predictions -> float`."""

from collections.abc import Callable

from calibrant.metrics.binned import (
    adaptive_ece,
    calibration_error,
    debiased_ece,
    debiased_rmsce,
    ece,
    mce,
    rmsce,
)
from calibrant.metrics.bins import BinSums
from calibrant.metrics.classwise import class_sums, classwise_ece, per_class_ece
from calibrant.metrics.comparisons import Difference, compare, compare_many, holm
from calibrant.metrics.grouped import group_ece
from calibrant.metrics.hypothesis_tests import TestResult, consistency_test, spiegelhalter
from calibrant.metrics.intervals import METHODS, Interval, interval
from calibrant.metrics.kernel import sece, smece
from calibrant.metrics.scores import (
    BrierSplit,
    accuracy,
    aurc,
    brier,
    brier_split,
    ks,
    nll,
    overconfidence,
)
from calibrant.metrics.simplex import simplex_ece
from calibrant.metrics.summary import Summary, summary

METRICS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy,
    "nll": nll,
    "brier": brier,
    "overconfidence": overconfidence,
    "ece": ece,
    "debiased_ece": debiased_ece,
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "mce": mce,
    "rmsce": rmsce,
    "debiased_rmsce": debiased_rmsce,
    "sece": sece,
    "smece": smece,
    "ks": ks,
    "simplex_ece": simplex_ece,
    "aurc": aurc,
}
# Those whose `bins` cut the confidence; bins of the simplex mean something else.
WITH_BINS = frozenset(
    {"ece", "debiased_ece", "adaptive_ece", "classwise_ece", "mce", "rmsce", "debiased_rmsce"}
)

__all__ = [
    "METHODS",
    "METRICS",
    "WITH_BINS",
    "BinSums",
    "BrierSplit",
    "Difference",
    "Interval",
    "Summary",
    "TestResult",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier",
    "brier_split",
    "calibration_error",
    "class_sums",
    "classwise_ece",
    "compare",
    "compare_many",
    "consistency_test",
    "debiased_ece",
    "debiased_rmsce",
    "ece",
    "group_ece",
    "holm",
    "interval",
    "ks",
    "mce",
    "nll",
    "overconfidence",
    "per_class_ece",
    "rmsce",
    "sece",
    "simplex_ece",
    "smece",
    "spiegelhalter",
    "summary",
]
