"""MCGrad: the same cumulative calibration error, its test, and its maximum over segments."""

import warnings

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.metrics.brownian_motion import range_tail

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("mcgrad.metrics")
    pandas = pytest.importorskip("pandas")
    kuiper = pytest.importorskip("probmetrics.metrics")


# Of pandas, about how MCGrad calls it.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


def drawn(n, *, slope=1.0, seed=0):
    generator = np.random.default_rng(seed)
    odds = 1.5 * generator.normal(size=n) - 1
    labels = (generator.random(n) < 1 / (1 + np.exp(-slope * odds))).astype(int)
    return Predictions.from_binary(odds, labels, kind="logits")


def test_the_error_of_the_confidence_is_the_same(real):
    # Ours adds tied confidences at once: of any order, the same sum as of one weighted example.
    values, at, counts = np.unique(real.confidence, return_inverse=True, return_counts=True)
    share = np.bincount(at, real.correct) / counts
    found = theirs.ecce(share, values, counts / counts.sum())
    ours = metrics.ecce(real.predictions)
    assert ours == pytest.approx(found, abs=1e-9)
    # Without ties all of its functions are ours; with them, it sees the order of the examples.
    order = theirs.ecce(real.correct.astype(float), real.confidence)
    if len(values) == len(real.confidence):
        assert ours == pytest.approx(order, abs=1e-9)
        sigma = theirs.ecce_sigma(real.correct.astype(float), real.confidence)
        assert metrics.cumulative_test(real.predictions).statistic == pytest.approx(sigma, rel=1e-9)
    else:
        assert ours <= order + 1e-9


@pytest.mark.parametrize("slope", [1.0, 0.9, 0.6])
def test_statistic_and_p_value_of_class_1_are_the_same(slope):
    p = drawn(3000, slope=slope)
    labels, probs = p.labels.numpy(), p.positive_probs.numpy()
    found = metrics.cumulative_test(p, positive=True)
    assert found.statistic == pytest.approx(theirs.ecce_sigma(labels, probs), rel=1e-9)
    assert found.p_value == pytest.approx(theirs.ecce_pvalue(labels, probs), abs=1e-12)


def test_p_values_are_the_same_at_every_statistic():
    # It subtracts from 1 and has a smallest value; our tail is accurate at any size.
    values = np.linspace(0.3, 8, 500)
    ours = [range_tail(value) for value in values]
    np.testing.assert_allclose(ours, theirs.ecce_pvalue_from_sigma(values), atol=1e-12)
    assert 0 < range_tail(12.0) < theirs.ecce_pvalue_from_sigma(12.0)


def test_range_and_maximum_are_those_of_probmetrics():
    p = drawn(3000, slope=0.6)
    labels, probs = p.labels, p.positive_probs
    spread = float((probs * (1 - probs)).sum().sqrt()) / len(p)
    for metric, statistic in (
        (kuiper.KuiperCalibrationMetric(), "range"),
        (kuiper.KolmogorovSmirnovCalibrationMetric(), "maximum"),
    ):
        found = float(metric.compute_from_labels_probs(labels, p.probs))
        ours = metrics.cumulative_test(p, positive=True, statistic=statistic).statistic * spread
        # Its cumulative sums are float32.
        assert ours == pytest.approx(found, abs=1e-5), statistic


def test_errors_of_segments_and_pairs_of_them_are_the_same():
    p, generator = drawn(4000, slope=0.7), np.random.default_rng(1)
    # Its bins of numbers have other edges than ours, so columns are texts.
    columns = {
        "region": np.array(["north", "east", "south"])[generator.integers(0, 3, len(p))],
        "device": np.array(["a", "b"])[(generator.random(len(p)) < 0.05).astype(int)],
    }
    frame = pandas.DataFrame(
        {**columns, "score": p.positive_probs.numpy(), "label": p.labels.numpy()}
    )
    error = theirs.MulticalibrationError(
        frame,
        "label",
        "score",
        categorical_segment_columns=list(columns),
        max_depth=2,
        min_samples_per_segment=100,
        precision_dtype="float64",
    )
    ours = metrics.multicalibration_error(p, columns, least=100)
    # Pairs with the rare device are too small.
    assert len(ours.segments) == 9
    for name, found in (
        ("ecce", error.segments_ecce),
        ("statistic", error.segments_ecce_sigma),
    ):
        mine = sorted(getattr(each, name) for each in ours.segments)
        np.testing.assert_allclose(mine, np.sort(found), rtol=1e-9, err_msg=name)
    assert ours.largest == pytest.approx(error.mce_sigma, rel=1e-9)
