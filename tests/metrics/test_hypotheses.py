"""Tests of calibration: they hold their level and find what is wrong."""

import numpy as np
import pytest
from scipy import stats

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.metrics import brownian_motion
from calibrant.metrics.brownian_motion import maximum_tail, range_tail
from calibrant.metrics.resampling.consistency import redrawn

REPEATS = 1000
# 5 % of 1,000 with three standard errors, sqrt(1000 * 0.05 * 0.95) = 6.9, on either side.
ALLOWED = range(30, 71)


def rejections(name, n, test):
    samples = (SYNTHETIC[name].sample(n, seed=seed).predictions for seed in range(REPEATS))
    return sum(test(p, seed).p_value < 0.05 for seed, p in enumerate(samples))


TESTS = {
    "spiegelhalter": lambda p, _: metrics.spiegelhalter(p),
    "spiegelhalter_every_class": lambda p, _: metrics.spiegelhalter(p, every_class=True),
    "consistency": lambda p, seed: metrics.consistency_test(p, resamples=199, seed=seed),
    "cumulative": lambda p, _: metrics.cumulative_test(p),
    "cumulative_maximum": lambda p, _: metrics.cumulative_test(p, statistic="maximum"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_calibrated_predictions_are_rejected_in_five_percent(test):
    assert rejections("calibrated", 300, test) in ALLOWED


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
@pytest.mark.parametrize("name", ["overconfident", "underconfident", "tempered"])
def test_miscalibrated_predictions_are_rejected(test, name):
    p = SYNTHETIC[name].sample(3000, seed=0).predictions
    assert test(p, 0).p_value < 0.01


def test_errors_that_cancel_on_average_are_detected():
    p = SYNTHETIC["wavy"].sample(10_000, seed=0).predictions
    assert metrics.consistency_test(p, resamples=199).p_value < 0.01
    assert metrics.cumulative_test(p).p_value < 0.05


def test_tails_of_brownian_motion_are_those_of_random_walks():
    steps = np.random.default_rng(0).standard_normal((4000, 2000), dtype=np.float32)
    walks = np.cumsum(steps, 1, dtype=np.float64) / 2000**0.5
    high, low = walks.max(1).clip(0), walks.min(1).clip(None, 0)
    # A walk of 2,000 steps misses about 0.58 / sqrt(2000) of each extreme.
    missed = 0.5826 / 2000**0.5
    for x in (0.8, 1.2, 1.6, 2.2, 3.0):
        of_range = np.mean(high - low + 2 * missed > x)
        of_maximum = np.mean(np.maximum(high, -low) + missed > x)
        assert range_tail(x) == pytest.approx(of_range, abs=0.03), x
        assert maximum_tail(x) == pytest.approx(of_maximum, abs=0.03), x


def test_both_series_of_each_tail_agree_and_reach_their_limits(monkeypatch):
    for tail, split in ((range_tail, "RANGE_SPLIT"), (maximum_tail, "MAXIMUM_SPLIT")):
        for x in (1.0, 1.5, 2.0, 3.0):
            values = []
            for at in (0.0, 10.0):
                monkeypatch.setattr(brownian_motion, split, at)
                values.append(tail(x))
            assert values[0] == pytest.approx(values[1], abs=1e-13), (split, x)
        monkeypatch.undo()
        assert (tail(0.0), tail(1e-3), tail(0.05)) == (1, 1, 1)
    # The leading terms: 8 and 4 normal tails.
    assert range_tail(9.0) == pytest.approx(8 * stats.norm.sf(9.0), rel=1e-12)
    assert maximum_tail(9.0) == pytest.approx(4 * stats.norm.sf(9.0), rel=1e-12)
    # The mean of the range is the integral of its tail, 2 sqrt(2 / pi).
    grid = np.linspace(0, 12, 1201)
    mean = np.trapezoid([range_tail(x) for x in grid], grid)
    assert mean == pytest.approx((8 / np.pi) ** 0.5, rel=1e-6)


def test_the_cumulative_test_is_ecce_over_its_standard_error():
    p = SYNTHETIC["tempered"].sample(500, seed=0).predictions
    r = p.confidence.numpy()
    error = (r * (1 - r)).sum() ** 0.5 / len(r)
    found = metrics.cumulative_test(p)
    assert found.statistic == pytest.approx(metrics.ecce(p) / error)
    assert found.p_value == pytest.approx(range_tail(found.statistic))
    largest = metrics.cumulative_test(p, statistic="maximum").statistic
    assert largest == pytest.approx(metrics.ks(p) / error)


def test_spiegelhalter_by_hand():
    # r = 0.8, 0.8, 0.6 with c = 1, 0, 1.
    p = Predictions.from_binary([0.8, 0.8, 0.6], [1, 0, 1], kind="probs")
    top = (0.2 * -0.6) + (-0.8 * -0.6) + (0.4 * -0.2)
    spread = (2 * 0.36 * 0.16 + 0.04 * 0.24) ** 0.5
    assert metrics.spiegelhalter(p).statistic == pytest.approx(top / spread)


def test_spiegelhalter_of_every_class_equals_that_of_the_top_for_two():
    p = SYNTHETIC["tempered"].sample(500, seed=0).predictions
    one, two = metrics.spiegelhalter(p), metrics.spiegelhalter(p, every_class=True)
    assert one.statistic == pytest.approx(two.statistic)


def test_consistency_resamples_from_the_confidences():
    p = SYNTHETIC["overconfident"].sample(50, seed=0).predictions
    generator = np.random.default_rng(5)
    drawn = []
    for _ in range(4000):
        correct = generator.random(50) < p.confidence.numpy()
        drawn.append(metrics.BinSums.of_confidence(p.confidence.numpy(), correct * 1.0).ece)
    expected = np.mean(np.array(drawn) >= metrics.ece(p))
    found = metrics.consistency_test(p, resamples=4000).p_value
    assert found == pytest.approx(expected, abs=0.03)


def test_certain_predictions():
    right = Predictions.from_probs([[1.0, 0.0]] * 20, [0] * 20)
    wrong = Predictions.from_probs([[1.0, 0.0]] * 20, [0] * 19 + [1])
    assert metrics.spiegelhalter(right).p_value == 1
    assert metrics.spiegelhalter(wrong).p_value == 0
    assert metrics.cumulative_test(right).p_value == 1
    assert metrics.cumulative_test(wrong).p_value == 0
    assert metrics.consistency_test(right, resamples=99).p_value == 1
    assert metrics.consistency_test(wrong, resamples=99).p_value == 0.01


def test_weights_are_refused():
    p = SYNTHETIC["wavy"].sample(50, seed=0).predictions.reweighted(np.ones(50))
    with pytest.raises(ValueError, match="not weights"):
        metrics.spiegelhalter(p)


def test_redrawn_labels_follow_the_predictions():
    p = SYNTHETIC["overconfident"].sample(20_000, seed=0).predictions
    (drawn,) = redrawn(p, 1, seed=0)
    assert metrics.consistency_test(drawn, resamples=199).p_value > 0.01
    assert metrics.spiegelhalter(drawn, every_class=True).p_value > 0.01
    expected, counts = p.probs.sum(0).numpy(), np.bincount(drawn.labels.numpy(), minlength=10)
    np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(expected.max()))


def test_p_values_are_shown_as_in_tables():
    certain = Predictions(np.tile([0.0, 40.0], (500, 1)), np.arange(500) % 2)
    assert metrics.spiegelhalter(certain).p_value == 0
    assert str(metrics.spiegelhalter(certain)) == "p <0.0001"
    assert str(metrics.TestResult(20.0, 4.37e-145)) == "p <0.0001"
    assert str(metrics.TestResult(0.02, 0.25, 0.001)) == "p 0.2500"
    assert str(metrics.TestResult(0.02, 0.001, 0.001)) == "p <=0.0010"
    gap = metrics.Difference(0.1, 0.05, 0.15, 4e-5, smallest=1e-5)
    assert str(gap) == "+0.1000 [+0.0500, +0.1500], p <0.0001"
