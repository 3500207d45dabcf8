"""Tests of calibration: they hold their level and find what is wrong."""

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC
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


def test_consistency_detects_errors_that_cancel_on_average():
    p = SYNTHETIC["wavy"].sample(10_000, seed=0).predictions
    assert metrics.consistency_test(p, resamples=199).p_value < 0.01


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
