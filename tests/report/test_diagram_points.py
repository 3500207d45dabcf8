"""The numbers of a reliability diagram."""

import numpy as np
import pytest

from calibrant import BinSums, Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.report.reliability_points import points_of, top_label_sums, wilson


@pytest.fixture(scope="module")
def predictions():
    return SYNTHETIC["overconfident"].sample(700, seed=1).predictions


def test_wilson_interval_worked_by_hand():
    # 8 of 10, z = 1.959964: centre (0.8 + 0.192073) / 1.384146 = 0.716740,
    # half-width 1.959964 * sqrt(0.016 + 0.0096036) / 1.384146 = 0.226577.
    low, high = wilson(np.array([8.0]), np.array([10.0]))
    np.testing.assert_allclose([low[0], high[0]], [0.490163, 0.943317], atol=2e-6)


def test_wilson_interval_stays_inside_the_unit_interval_and_widens_with_level():
    correct, count = np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 5.0])
    low, high = wilson(correct, count, level=0.95)
    assert (low[0], high[1]) == (0, 1)
    assert (low >= 0).all()
    assert (high <= 1).all()
    wider_low, wider_high = wilson(correct, count, level=0.99)
    assert (wider_high - wider_low > high - low).all()
    for level in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
            wilson(correct, count, level=level)


def test_points_are_the_means_of_the_bins_that_hold_examples(predictions):
    sums = BinSums.of(predictions, 12)
    points = points_of(sums)
    filled = sums.count > 0
    assert 0 < filled.sum() < 12
    count = sums.count[filled]
    np.testing.assert_allclose(points.confidence, sums.confidence[filled] / count)
    np.testing.assert_allclose(points.accuracy, sums.correct[filled] / count)
    np.testing.assert_allclose(points.left, np.arange(12)[filled] / 12)
    np.testing.assert_allclose(points.right, np.arange(1, 13)[filled] / 12)
    assert points.count.sum() == len(predictions)
    gap = (points.count * np.abs(points.confidence - points.accuracy)).sum() / points.count.sum()
    assert gap == pytest.approx(metrics.ece(predictions, bins=12))


def test_adaptive_sums_are_those_of_adaptive_ece(predictions):
    sums = top_label_sums(predictions, bins=9, adaptive=True)
    assert sums.ece == pytest.approx(metrics.adaptive_ece(predictions, bins=9), abs=1e-12)
    assert sums.count.max() - sums.count.min() <= 1
    points = points_of(sums)
    np.testing.assert_allclose(points.left[1:], points.right[:-1])
    assert (points.left < points.confidence).all()
    assert (points.confidence < points.right).all()
    assert points.left[0] >= 0
    assert points.right[-1] <= 1
    with pytest.raises(ValueError, match="adaptive bins are a number"):
        top_label_sums(predictions, bins=[0.0, 0.5, 1.0], adaptive=True)


def test_adaptive_sums_keep_ties_together_and_use_the_weights():
    confidence, weights = np.repeat([0.6, 0.7, 0.9], [5, 2, 3]), np.arange(1.0, 11.0)
    ones = np.ones(10, dtype=int)
    p = Predictions.from_binary(confidence, ones, kind="probs", weights=weights)
    sums = top_label_sums(p, bins=2, adaptive=True)
    assert sums.ece == pytest.approx(metrics.adaptive_ece(p, bins=2), abs=1e-12)
    assert sums.count.sum() == 55


def test_a_single_bin_has_a_place_and_fewer_than_ten_examples_are_few():
    points = points_of(top_label_sums(Predictions([[1.0, 0.0]] * 4, [0] * 4), adaptive=True))
    assert points.left[0] < points.confidence[0] < points.right[0]
    sums = BinSums.of_confidence(np.repeat([0.2, 0.8], [9, 10]), np.ones(19), bins=2)
    assert points_of(sums).few.tolist() == [True, False]
