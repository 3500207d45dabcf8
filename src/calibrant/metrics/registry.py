"""All metrics. A new one is a function with its resampling form, and an entry here."""

import math
from functools import partial

from calibrant.metrics.binary import (
    average_precision,
    average_precision_statistic,
    binary_brier,
    binary_brier_statistic,
    binary_ece,
    binary_ece_statistic,
    brier_skill,
    brier_skill_statistic,
    calibration_in_the_large,
    calibration_in_the_large_statistic,
    calibration_intercept,
    calibration_slope,
    recalibration_statistic,
    roc_auc,
    roc_auc_statistic,
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
from calibrant.metrics.classwise import classwise_ece, classwise_ece_statistic
from calibrant.metrics.grouped import group_ece, group_ece_statistic
from calibrant.metrics.kernel import sece, sece_statistic, smece, smece_statistic
from calibrant.metrics.metric import Metric, MetricFunction
from calibrant.metrics.scores import (
    accuracy,
    aurc,
    aurc_statistic,
    brier,
    brier_values,
    correct_values,
    excess_values,
    ks,
    ks_statistic,
    mean_statistic,
    nll,
    nll_values,
    overconfidence,
)
from calibrant.metrics.simplex import simplex_ece, simplex_ece_statistic

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            accuracy,
            partial(mean_statistic, of_example=correct_values),
            label="accuracy",
            meaning="fraction of correct predictions",
            best="higher",
        ),
        Metric(
            nll,
            partial(mean_statistic, of_example=nll_values),
            label="NLL",
            meaning="log loss, in nats",
            range=(0.0, math.inf),
            proper=True,
        ),
        Metric(
            brier,
            partial(mean_statistic, of_example=brier_values),
            label="Brier score",
            meaning="squared error, from 0 to 2",
            range=(0.0, 2.0),
            proper=True,
        ),
        Metric(
            overconfidence,
            partial(mean_statistic, of_example=excess_values),
            label="overconfidence",
            meaning="mean confidence minus accuracy",
            best="zero",
            range=(-1.0, 1.0),
        ),
        Metric(
            ece,
            partial(binned_statistic, measure=lambda sums: sums.ece),
            label="ECE",
            meaning="mean gap over equal-width bins",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            debiased_ece,
            partial(binned_statistic, measure=without_noise_l1),
            label="debiased ECE",
            meaning="ECE minus its sampling bias",
            calibration_error=True,
            range=(-1.0, 1.0),
            takes_bins=True,
        ),
        Metric(
            adaptive_ece,
            adaptive_ece_statistic,
            label="adaptive ECE",
            meaning="mean gap over equal-mass bins",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            classwise_ece,
            classwise_ece_statistic,
            label="classwise ECE",
            meaning="ECE of each class, averaged",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            mce,
            partial(binned_statistic, measure=lambda sums: sums.mce),
            label="MCE",
            meaning="largest gap of any bin; noisy",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            rmsce,
            partial(binned_statistic, measure=lambda sums: sums.rmsce),
            label="RMSCE",
            meaning="root mean square gap over bins",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            debiased_rmsce,
            partial(binned_statistic, measure=without_noise_l2),
            label="debiased RMSCE",
            meaning="RMSCE minus its sampling bias",
            calibration_error=True,
            takes_bins=True,
        ),
        Metric(
            sece,
            sece_statistic,
            label="SECE",
            meaning="kernel-smoothed gap, width 0.01",
            calibration_error=True,
        ),
        Metric(
            smece,
            smece_statistic,
            label="smECE",
            meaning="kernel-smoothed gap, own width",
            calibration_error=True,
        ),
        Metric(
            ks,
            ks_statistic,
            label="KS",
            meaning="largest cumulative gap, no bins",
            calibration_error=True,
        ),
        Metric(
            simplex_ece,
            simplex_ece_statistic,
            label="simplex ECE",
            meaning="gap of full probability vectors",
            calibration_error=True,
        ),
        Metric(
            aurc,
            aurc_statistic,
            label="AURC",
            meaning="area under risk-coverage curve",
        ),
        Metric(
            calibration_in_the_large,
            calibration_in_the_large_statistic,
            label="calibration in the large",
            meaning="mean P(positive) minus base rate",
            best="zero",
            range=(-1.0, 1.0),
            two_classes=True,
        ),
        Metric(
            calibration_intercept,
            partial(recalibration_statistic, slope=False),
            label="calibration intercept",
            meaning="log-odds by which P is too low",
            best="zero",
            range=(-math.inf, math.inf),
            two_classes=True,
        ),
        Metric(
            calibration_slope,
            partial(recalibration_statistic, slope=True),
            label="calibration slope",
            meaning="below 1: P is too extreme",
            best="one",
            range=(-math.inf, math.inf),
            two_classes=True,
        ),
        Metric(
            binary_ece,
            binary_ece_statistic,
            label="ECE of P(positive)",
            meaning="mean gap over bins of P(positive)",
            calibration_error=True,
            takes_bins=True,
            two_classes=True,
        ),
        Metric(
            binary_brier,
            binary_brier_statistic,
            label="Brier score of P(positive)",
            meaning="squared error, from 0 to 1",
            proper=True,
            two_classes=True,
        ),
        Metric(
            brier_skill,
            brier_skill_statistic,
            label="Brier skill score",
            meaning="gain over the base rate, to 1",
            best="higher",
            range=(-math.inf, 1.0),
            two_classes=True,
        ),
        Metric(
            roc_auc,
            roc_auc_statistic,
            label="ROC AUC",
            meaning="area under the ROC curve",
            best="higher",
            two_classes=True,
        ),
        Metric(
            average_precision,
            average_precision_statistic,
            label="average precision",
            meaning="area under precision-recall",
            best="higher",
            two_classes=True,
        ),
    )
}


def metrics_for(classes: int) -> dict[str, Metric]:
    """The metrics that are defined for so many classes; of two, the positive class comes first."""
    own = {name: metric for name, metric in METRICS.items() if metric.two_classes}
    rest = {name: metric for name, metric in METRICS.items() if not metric.two_classes}
    return own | rest if classes == 2 else rest


# Not in summaries: one needs groups, the other a norm.
UNLISTED = (
    Metric(
        group_ece,
        group_ece_statistic,
        label="ECE within groups",
        meaning="ECE of each group, averaged",
        calibration_error=True,
        takes_bins=True,
    ),
    Metric(
        calibration_error,
        calibration_error_statistic,
        label="calibration error",
        meaning="L_p norm of the gap over bins",
        calibration_error=True,
        takes_bins=True,
    ),
)


def descriptor(metric: MetricFunction) -> Metric | None:
    """Find the entry of a function or of a `partial` of it; None for other functions."""
    plain = metric.func if isinstance(metric, partial) else metric
    known = (*METRICS.values(), *UNLISTED)
    return next((each for each in known if plain in (each, each.function)), None)
