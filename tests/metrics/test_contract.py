"""What every metric promises, run over the whole dict."""

import inspect
import math
import warnings
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.metrics import METRICS, calibration_error, classwise_ece, sece
from calibrant.metrics.registry import UNLISTED, descriptor
from calibrant.metrics.resampling.draws import resampler

pytestmark = pytest.mark.filterwarnings("ignore:.*(bins|class ).*:UserWarning")

CASES = {
    **METRICS,
    "l3": partial(calibration_error, norm=3.0),
    "custom_edges": partial(calibration_error, bins=(0.0, 0.3, 0.9, 1.0)),
    "classwise_adaptive": partial(classwise_ece, adaptive=True),
    "classwise_thresholded": partial(classwise_ece, threshold=0.01),
    "sece_wide": partial(sece, bandwidth=0.2),
    "sece_leave_one_out": partial(sece, form="leave_one_out", bandwidth=0.05),
    "sece_grid": partial(sece, form="grid", bandwidth=0.05),
}


def classes(metric, most):
    """So many classes, or two if a metric is defined for two only."""
    return 2 if descriptor(metric).two_classes else most


def sample(n, k, seed, *, ties=False):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * 2
    if ties:
        logits = logits.round()
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Predictions(logits, labels)


@pytest.mark.parametrize("metric", CASES.values(), ids=CASES)
class TestEveryMetric:
    @settings(max_examples=15)
    @given(seed=st.integers(0, 500), n=st.integers(1, 40), k=st.integers(2, 4))
    def test_lies_in_its_range_for_any_order_of_the_examples(self, metric, seed, n, k):
        p = sample(n, classes(metric, k), seed, ties=seed % 2 == 0)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        (low, high), value = descriptor(metric).range, metric(p)
        assert metric(p.take(order)) == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True)
        undefined = descriptor(metric).two_classes and len(set(p.labels.tolist())) == 1
        assert low - 1e-12 <= value <= high + 1e-12 or (undefined and math.isnan(value))

    def test_a_weight_of_three_is_three_examples(self, metric):
        for n, ties in product((30, 700), (False, True)):
            p = sample(n, classes(metric, 3), 5, ties=ties)
            counts = np.random.default_rng(1).integers(0, 4, n)
            repeated = p.take(np.repeat(np.arange(n), counts))
            assert metric(p.reweighted(counts)) == pytest.approx(metric(repeated), abs=1e-7)

    def test_the_resampling_form_equals_the_metric(self, metric):
        p = sample(800, classes(metric, 4), 2)
        counts = np.random.default_rng(0).integers(0, 3, 800).astype(np.float64)
        assert resampler(metric, p)(np.ones(800)) == pytest.approx(metric(p), abs=1e-9)
        assert resampler(metric, p)(counts) == pytest.approx(metric(p.reweighted(counts)), abs=1e-9)

    def test_the_names_of_the_classes_do_not_matter(self, metric):
        p = sample(300, 4, 3)
        if descriptor(metric).two_classes:
            pytest.skip("class 1 is the positive class")
        order = torch.tensor([2, 0, 3, 1])
        renamed = Predictions(p.logits[:, order], order.argsort()[p.labels])
        assert metric(renamed) == pytest.approx(metric(p), abs=1e-12)

    def test_single_precision_is_close_to_double(self, metric):
        p = sample(500, classes(metric, 4), 4)
        assert metric(Predictions(p.logits.float(), p.labels)) == pytest.approx(metric(p), abs=1e-5)

    def test_probabilities_give_the_same_as_their_logits(self, metric):
        p = sample(500, classes(metric, 4), 4)
        assert metric(Predictions.from_probs(p.probs, p.labels)) == pytest.approx(metric(p))

    def test_a_shift_of_the_logits_changes_nothing(self, metric):
        p = sample(300, classes(metric, 4), 6)
        assert metric(p.map(lambda z: z + 7.5)) == pytest.approx(metric(p), abs=1e-10)


# With so many cells, the bias of simplex_ece goes away too slowly.
CALIBRATION_ERRORS = [
    name
    for name, metric in METRICS.items()
    if (metric.calibration_error or metric.best == "zero") and name != "simplex_ece"
]


def calibrated(name, n, seed):
    if METRICS[name].two_classes:
        return sample(n, 2, seed)
    return SYNTHETIC["calibrated"].sample(n, seed=seed).predictions


@pytest.mark.parametrize("name", CALIBRATION_ERRORS)
def test_converges_to_zero_on_calibrated_predictions(name):
    small, large = (
        np.mean([abs(METRICS[name](calibrated(name, n, seed))) for seed in range(5)])
        for n in (300, 30_000)
    )
    assert large < {"mce": 0.15, "calibration_intercept": 0.05}.get(name, 0.01)
    assert large < small / 2


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.takes_bins])
def test_warns_of_more_bins_than_examples(name):
    with pytest.warns(UserWarning, match="10 examples in 15 bins"):
        METRICS[name](sample(10, 2, 0))


def test_no_warning_where_there_are_enough_examples():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in METRICS.values():
            metric(sample(300, classes(metric, 3), 0))


def test_every_metric_can_be_resampled_with_its_own_options():
    for name, metric in METRICS.items():
        own = set(inspect.signature(metric.function).parameters) - {"predictions"}
        prepared = set(inspect.signature(metric.statistic).parameters)
        assert own <= prepared, name


def test_every_metric_is_exported():
    assert set(METRICS) <= set(metrics.__all__)


POSITIVE_ECE = {"binary_ece", "debiased_binary_ece"}


def test_descriptors_say_what_is_known_of_each_metric():
    def names(condition):
        return {name for name, metric in METRICS.items() if condition(metric)}

    binned = {"ece", "debiased_ece", "adaptive_ece", "classwise_ece"}
    binned |= {"mce", "rmsce", "debiased_rmsce"}
    assert names(lambda metric: metric.takes_bins) == binned | POSITIVE_ECE
    errors = binned | POSITIVE_ECE | {"sece", "smece", "ks", "ecce", "simplex_ece"}
    assert names(lambda metric: metric.calibration_error) == errors
    assert names(lambda metric: metric.proper) == {"nll", "brier", "binary_brier"}
    ranking = {"roc_auc", "average_precision"}
    assert names(lambda metric: metric.best == "higher") == {"accuracy", "brier_skill"} | ranking
    signed = {"overconfidence", "calibration_in_the_large", "calibration_intercept"}
    assert names(lambda metric: metric.best == "zero") == signed
    assert names(lambda metric: metric.best == "one") == {"calibration_slope"}
    own = {"binary_brier", "brier_skill", "calibration_slope"} | ranking | POSITIVE_ECE
    assert names(lambda metric: metric.two_classes) == own | signed - {"overconfidence"}
    assert all(metric.takes_bins and metric.calibration_error for metric in UNLISTED)
