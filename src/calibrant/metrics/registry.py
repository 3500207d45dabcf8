"""All metrics. A new one is a function with its resampling form, and an entry here."""

import math
from collections.abc import Callable
from functools import partial

from calibrant.metrics.binary import (
    average_precision,
    average_precision_statistic,
    binary_brier,
    binary_ece,
    binary_ece_statistic,
    brier_skill,
    brier_skill_statistic,
    calibration_in_the_large,
    calibration_intercept,
    calibration_slope,
    excess_positive,
    recalibration_statistic,
    roc_auc,
    roc_auc_statistic,
    squared_error,
)
from calibrant.metrics.binned import (
    adaptive_ece,
    adaptive_ece_statistic,
    binned_statistic,
    calibration_error,
    calibration_error_statistic,
    debiased_ece,
    debiased_rmsce,
    ece,
    mce,
    rmsce,
    without_noise_l1,
    without_noise_l2,
)
from calibrant.metrics.bins import BinSums
from calibrant.metrics.classwise import classwise_ece, classwise_ece_statistic
from calibrant.metrics.grouped import group_ece, group_ece_statistic
from calibrant.metrics.kernel import sece, sece_statistic, smece, smece_statistic
from calibrant.metrics.metric import Metric, MetricFunction, Statistic
from calibrant.metrics.scores import (
    accuracy,
    aurc,
    aurc_statistic,
    brier,
    brier_values,
    confidence_error_values,
    correct_values,
    excess_values,
    ks,
    ks_statistic,
    mean_statistic,
    nll,
    nll_values,
    overconfidence,
    top_label_brier,
)
from calibrant.metrics.simplex import simplex_ece, simplex_ece_statistic
from calibrant.predictions import Predictions
from calibrant.shapes import Values

error = partial(Metric, calibration_error=True)
binned = partial(error, takes_bins=True)
positive = partial(Metric, two_classes=True)


def mean_of(values: Callable[[Predictions], Values]) -> Callable[..., Statistic]:
    """Resampling form of a mean over examples."""
    return partial(mean_statistic, of_example=values)


def sums_of(measure: Callable[[BinSums], float]) -> Callable[..., Statistic]:
    """Resampling form of a function of the sums per bin."""
    return partial(binned_statistic, measure=measure)


ALL = (
    Metric(
        accuracy,
        mean_of(correct_values),
        "accuracy",
        "fraction of correct predictions",
        best="higher",
    ),
    Metric(
        nll,
        mean_of(nll_values),
        "NLL",
        "log loss, in nats",
        range=(0.0, math.inf),
        proper=True,
        every_class=True,
    ),
    Metric(
        brier,
        mean_of(brier_values),
        "Brier score",
        "squared error, from 0 to 2",
        range=(0.0, 2.0),
        proper=True,
        every_class=True,
    ),
    Metric(
        overconfidence,
        mean_of(excess_values),
        "overconfidence",
        "mean confidence minus accuracy",
        best="zero",
        range=(-1.0, 1.0),
    ),
    binned(ece, sums_of(lambda sums: sums.ece), "ECE", "mean gap over equal-width bins"),
    binned(
        debiased_ece,
        sums_of(without_noise_l1),
        "debiased ECE",
        "ECE minus its sampling bias",
        range=(-1.0, 1.0),
    ),
    binned(adaptive_ece, adaptive_ece_statistic, "adaptive ECE", "mean gap over equal-mass bins"),
    binned(
        classwise_ece,
        classwise_ece_statistic,
        "classwise ECE",
        "ECE of each class, averaged",
        every_class=True,
    ),
    binned(mce, sums_of(lambda sums: sums.mce), "MCE", "largest gap of any bin; noisy"),
    binned(rmsce, sums_of(lambda sums: sums.rmsce), "RMSCE", "root mean square gap over bins"),
    binned(
        debiased_rmsce, sums_of(without_noise_l2), "debiased RMSCE", "RMSCE minus its sampling bias"
    ),
    error(sece, sece_statistic, "SECE", "kernel-smoothed gap, width 0.01"),
    error(smece, smece_statistic, "smECE", "kernel-smoothed gap, own width"),
    error(ks, ks_statistic, "KS", "largest cumulative gap, no bins"),
    error(
        simplex_ece,
        simplex_ece_statistic,
        "simplex ECE",
        "gap of full probability vectors",
        every_class=True,
    ),
    Metric(aurc, aurc_statistic, "AURC", "area under risk-coverage curve"),
    Metric(
        top_label_brier,
        mean_of(confidence_error_values),
        "Brier score of the confidence",
        "squared error of the confidence",
        confidence_only=True,
    ),
    positive(
        calibration_in_the_large,
        mean_of(excess_positive),
        "calibration in the large",
        "mean P(positive) minus base rate",
        best="zero",
        range=(-1.0, 1.0),
    ),
    positive(
        calibration_intercept,
        partial(recalibration_statistic, slope=False),
        "calibration intercept",
        "log-odds by which P is too low",
        best="zero",
        range=(-math.inf, math.inf),
    ),
    positive(
        calibration_slope,
        partial(recalibration_statistic, slope=True),
        "calibration slope",
        "below 1: P is too extreme",
        best="one",
        range=(-math.inf, math.inf),
    ),
    positive(
        binary_ece,
        binary_ece_statistic,
        "ECE of P(positive)",
        "mean gap, bins of P(positive)",
        calibration_error=True,
        takes_bins=True,
    ),
    positive(
        binary_brier,
        mean_of(squared_error),
        "Brier score of P(positive)",
        "squared error, from 0 to 1",
        proper=True,
    ),
    positive(
        brier_skill,
        brier_skill_statistic,
        "Brier skill score",
        "gain over the base rate, up to 1",
        best="higher",
        range=(-math.inf, 1.0),
    ),
    positive(roc_auc, roc_auc_statistic, "ROC AUC", "area under the ROC curve", best="higher"),
    positive(
        average_precision,
        average_precision_statistic,
        "average precision",
        "area under precision-recall",
        best="higher",
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in ALL}
# Not in summaries: one needs groups, the other a norm.
UNLISTED = (
    binned(group_ece, group_ece_statistic, "ECE within groups", "ECE of each group, averaged"),
    binned(
        calibration_error,
        calibration_error_statistic,
        "calibration error",
        "L_p norm of the gap over bins",
    ),
)


def metrics_for(classes: int) -> dict[str, Metric]:
    """The metrics defined for so many classes; for two, those of the positive class come first.

    One class means that only the confidence is known, as in `Predictions.from_confidence`.
    """
    own = {name: metric for name, metric in METRICS.items() if metric.two_classes}
    rest = {name: metric for name, metric in METRICS.items() if not metric.two_classes}
    if classes == 1:
        return {name: metric for name, metric in rest.items() if not metric.every_class}
    rest = {name: metric for name, metric in rest.items() if not metric.confidence_only}
    return own | rest if classes == 2 else rest


def descriptor(metric: MetricFunction) -> Metric | None:
    """Find the entry of a function or of a `partial` of it; None for other functions."""
    plain = metric.func if isinstance(metric, partial) else metric
    known = (*METRICS.values(), *UNLISTED)
    return next((each for each in known if plain in (each, each.function)), None)
