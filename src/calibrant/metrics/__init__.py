"""Metrics: `Predictions -> float`; `METRICS` lists them with what is known about each."""

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
from calibrant.metrics.grouped import group_ece
from calibrant.metrics.hypothesis_tests import TestResult, consistency_test, spiegelhalter
from calibrant.metrics.kernel import sece, smece
from calibrant.metrics.metric import Metric
from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling.comparisons import Difference, compare, compare_many, holm
from calibrant.metrics.resampling.intervals import METHODS, Interval, interval
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

__all__ = [
    "METHODS",
    "METRICS",
    "BinSums",
    "BrierSplit",
    "Difference",
    "Interval",
    "Metric",
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
