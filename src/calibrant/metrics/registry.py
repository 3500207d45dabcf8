"""All metrics. A new one is a function with its resampling form, an entry here, and an export."""

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
    debiased_binary_ece,
    debiased_binary_ece_statistic,
    excess_positive,
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
from calibrant.metrics.recalibration import (
    calibration_intercept,
    calibration_slope,
    recalibration_statistic,
)
from calibrant.metrics.scores import (
    accuracy,
    aurc,
    aurc_statistic,
    brier,
    brier_values,
    confidence_error_values,
    correct_values,
    ecce,
    ecce_statistic,
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
        definition="The fraction of examples whose most probable class is the true class.",
    ),
    Metric(
        nll,
        mean_of(nll_values),
        "NLL",
        "log loss, in nats",
        range=(0.0, math.inf),
        proper=True,
        every_class=True,
        definition="Negative log-likelihood (log loss): the mean of -log p of the true class, in "
        "nats.",
    ),
    Metric(
        brier,
        mean_of(brier_values),
        "Brier score",
        "squared error, from 0 to 2",
        range=(0.0, 2.0),
        proper=True,
        every_class=True,
        definition="The mean over examples of the squared distance between the probability vector "
        "and the one-hot label.",
    ),
    Metric(
        overconfidence,
        mean_of(excess_values),
        "overconfidence",
        "mean confidence minus accuracy",
        best="zero",
        range=(-1.0, 1.0),
        definition="Mean confidence minus accuracy; positive if the model is over-confident.",
    ),
    binned(
        ece,
        sums_of(lambda sums: sums.ece),
        "ECE",
        "mean gap over equal-width bins",
        definition="Expected calibration error: the mean absolute gap between confidence and "
        "accuracy over equal-width bins of confidence, weighted by the examples in "
        "each bin.",
    ),
    binned(
        debiased_ece,
        sums_of(without_noise_l1),
        "debiased ECE",
        "ECE minus its sampling bias",
        range=(-1.0, 1.0),
        definition="The ECE minus an estimate of what sampling noise adds to it; about zero for "
        "calibrated predictions.",
    ),
    binned(
        adaptive_ece,
        adaptive_ece_statistic,
        "adaptive ECE",
        "mean gap over equal-mass bins",
        definition="The ECE over bins that hold equally many examples.",
    ),
    binned(
        classwise_ece,
        classwise_ece_statistic,
        "classwise ECE",
        "ECE of each class, averaged",
        every_class=True,
        definition="The ECE of the probability of each class against its frequency, averaged over "
        "classes.",
    ),
    binned(
        mce,
        sums_of(lambda sums: sums.mce),
        "MCE",
        "largest gap of any bin; noisy",
        definition="Maximum calibration error: the largest gap between confidence and accuracy of "
        "any bin.",
    ),
    binned(
        rmsce,
        sums_of(lambda sums: sums.rmsce),
        "RMSCE",
        "root mean square gap over bins",
        definition="Root mean square calibration error: the square root of the mean squared gap "
        "over equal-width bins of confidence.",
    ),
    binned(
        debiased_rmsce,
        sums_of(without_noise_l2),
        "debiased RMSCE",
        "RMSCE minus its sampling bias",
        definition="The RMSCE after subtraction of what sampling noise adds to the squared gaps.",
    ),
    error(
        sece,
        sece_statistic,
        "SECE",
        "kernel-smoothed gap, width 0.01",
        definition="Smooth ECE with a Gaussian kernel of fixed width 0.01 in place of bins.",
    ),
    error(
        smece,
        smece_statistic,
        "smECE",
        "kernel-smoothed gap, own width",
        definition="Smooth ECE with a kernel whose width is chosen so that it equals the error "
        "itself.",
    ),
    error(
        ks,
        ks_statistic,
        "KS",
        "largest cumulative gap, no bins",
        definition="Kolmogorov-Smirnov calibration error: the largest difference between "
        "cumulative confidence and cumulative accuracy, over examples sorted by "
        "confidence.",
    ),
    error(
        ecce,
        ecce_statistic,
        "ECCE",
        "range of cumulative gap, no bins",
        definition="Estimated cumulative calibration error: the range of the cumulative difference "
        "between confidence and accuracy, over examples sorted by confidence.",
    ),
    error(
        simplex_ece,
        simplex_ece_statistic,
        "simplex ECE",
        "gap of full probability vectors",
        every_class=True,
        definition="The mean gap between the probability vector and the class frequencies of "
        "examples with similar vectors.",
    ),
    Metric(
        aurc,
        aurc_statistic,
        "AURC",
        "area under risk-coverage curve",
        definition="Area under the risk-coverage curve: the mean error rate when the least "
        "confident examples are left out one by one.",
    ),
    Metric(
        top_label_brier,
        mean_of(confidence_error_values),
        "Brier score of the confidence",
        "squared error of the confidence",
        confidence_only=True,
        definition="The mean squared difference between confidence and correctness.",
    ),
    positive(
        calibration_in_the_large,
        mean_of(excess_positive),
        "calibration in the large",
        "mean P(positive) minus base rate",
        best="zero",
        range=(-1.0, 1.0),
        definition="Mean predicted probability of the positive class minus its observed frequency.",
    ),
    positive(
        calibration_intercept,
        partial(recalibration_statistic, slope=False),
        "calibration intercept",
        "log-odds by which P is too low",
        best="zero",
        range=(-math.inf, math.inf),
        definition="The constant that a logistic regression of the labels adds to the log-odds, "
        "with the slope fixed at 1; 0 if calibrated on average.",
    ),
    positive(
        calibration_slope,
        partial(recalibration_statistic, slope=True),
        "calibration slope",
        "below 1: P is too extreme",
        best="one",
        range=(-math.inf, math.inf),
        definition="The coefficient of the log-odds in a logistic regression of the labels on "
        "them; below 1 if probabilities are too extreme.",
    ),
    positive(
        binary_ece,
        binary_ece_statistic,
        "ECE of P(positive)",
        "mean gap, bins of P(positive)",
        calibration_error=True,
        takes_bins=True,
        definition="The mean absolute gap between the probability of the positive class and its "
        "frequency over equal-width bins, weighted by the examples in each bin.",
    ),
    positive(
        debiased_binary_ece,
        debiased_binary_ece_statistic,
        "debiased ECE of P(positive)",
        "ECE of P(positive), debiased",
        range=(-1.0, 1.0),
        calibration_error=True,
        takes_bins=True,
        definition="The ECE of the probability of the positive class minus an estimate of what "
        "sampling noise adds to it.",
    ),
    positive(
        binary_brier,
        mean_of(squared_error),
        "Brier score of P(positive)",
        "squared error, from 0 to 1",
        proper=True,
        definition="The mean squared difference between the probability of the positive class and "
        "the label, 0 or 1.",
    ),
    positive(
        brier_skill,
        brier_skill_statistic,
        "Brier skill score",
        "gain over the base rate, up to 1",
        best="higher",
        range=(-math.inf, 1.0),
        definition="One minus the Brier score divided by that of a model that always predicts the "
        "base rate.",
    ),
    positive(
        roc_auc,
        roc_auc_statistic,
        "ROC AUC",
        "area under the ROC curve",
        best="higher",
        definition="Area under the ROC curve: the probability that a random positive example has "
        "a higher score than a random negative one.",
    ),
    positive(
        average_precision,
        average_precision_statistic,
        "average precision",
        "area under precision-recall",
        best="higher",
        definition="Area under the precision-recall curve: precision averaged over the "
        "thresholds, weighted by the increase of recall.",
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in ALL}
# Not in summaries: one needs groups, the other a norm.
UNLISTED = (
    binned(
        group_ece,
        group_ece_statistic,
        "ECE within groups",
        "ECE of each group, averaged",
        definition="The ECE within each group of examples, such as an image, averaged over groups.",
    ),
    binned(
        calibration_error,
        calibration_error_statistic,
        "calibration error",
        "L_p norm of the gap over bins",
        definition="The L_p norm of the gap between confidence and accuracy over bins of "
        "confidence.",
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
