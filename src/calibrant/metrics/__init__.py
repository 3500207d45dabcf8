"""Metrics: `Predictions -> float`; `METRICS` lists them with what is known about each."""

from calibrant.deprecated import renamed_in
from calibrant.metrics.binary import (
    AtThreshold,
    at_thresholds,
    average_precision,
    base_rate,
    binary_brier,
    binary_ece,
    brier_skill,
    calibration_in_the_large,
    debiased_binary_ece,
    mean_probability,
    positive_sums,
    roc_auc,
)
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
from calibrant.metrics.class_bias import ClassBias, class_biases
from calibrant.metrics.classwise import class_sums, classwise_ece, per_class_ece
from calibrant.metrics.control_charts import ControlChart, cusum, cusum_threshold, fixed_window_z
from calibrant.metrics.grouped import group_ece
from calibrant.metrics.hypothesis_tests import (
    TestResult,
    consistency_test,
    cumulative_test,
    spiegelhalter,
)
from calibrant.metrics.kernel import sece, smece
from calibrant.metrics.label_summary import LabelResult, LabelSummary, label_summary
from calibrant.metrics.metric import Metric
from calibrant.metrics.multi_label import macro, micro, per_label
from calibrant.metrics.multicalibration import (
    MulticalibrationError,
    SegmentError,
    multicalibration_error,
)
from calibrant.metrics.recalibration import calibration_intercept, calibration_slope
from calibrant.metrics.registry import METRICS, metrics_for
from calibrant.metrics.resampling.comparisons import Difference, compare, compare_many, holm
from calibrant.metrics.resampling.intervals import INTERVAL_TYPES, Interval, interval
from calibrant.metrics.scores import (
    BrierSplit,
    accuracy,
    aurc,
    brier,
    brier_split,
    ecce,
    ks,
    nll,
    overconfidence,
    top_label_brier,
)
from calibrant.metrics.sequential import CalibrationEProcess, DriftTest, drift_test
from calibrant.metrics.simplex import simplex_ece
from calibrant.metrics.summary import Summary, summary

__all__ = [
    "INTERVAL_TYPES",
    "METRICS",
    "AtThreshold",
    "BinSums",
    "BrierSplit",
    "CalibrationEProcess",
    "ClassBias",
    "ControlChart",
    "Difference",
    "DriftTest",
    "Interval",
    "LabelResult",
    "LabelSummary",
    "Metric",
    "MulticalibrationError",
    "SegmentError",
    "Summary",
    "TestResult",
    "accuracy",
    "adaptive_ece",
    "at_thresholds",
    "aurc",
    "average_precision",
    "base_rate",
    "binary_brier",
    "binary_ece",
    "brier",
    "brier_skill",
    "brier_split",
    "calibration_error",
    "calibration_in_the_large",
    "calibration_intercept",
    "calibration_slope",
    "class_biases",
    "class_sums",
    "classwise_ece",
    "compare",
    "compare_many",
    "consistency_test",
    "cumulative_test",
    "cusum",
    "cusum_threshold",
    "debiased_binary_ece",
    "debiased_ece",
    "debiased_rmsce",
    "drift_test",
    "ecce",
    "ece",
    "fixed_window_z",
    "group_ece",
    "holm",
    "interval",
    "ks",
    "label_summary",
    "macro",
    "mce",
    "mean_probability",
    "metrics_for",
    "micro",
    "multicalibration_error",
    "nll",
    "overconfidence",
    "per_class_ece",
    "per_label",
    "positive_sums",
    "rmsce",
    "roc_auc",
    "sece",
    "simplex_ece",
    "smece",
    "spiegelhalter",
    "summary",
    "top_label_brier",
]

__getattr__ = renamed_in(__name__)
