"""A metric over several trainings: examples and seeds both widen the interval."""

import math

import pytest

from calibrant.metrics.resampling.seeds import over_runs


def test_one_training_has_its_own_interval():
    reading = over_runs("ece", [(0.1, 0.07, 0.15)])
    assert (reading.value, reading.low, reading.high) == pytest.approx((0.1, 0.07, 0.15))


def test_seeds_widen_the_interval_on_both_sides():
    reading = over_runs("nll", [(1.0, 0.9, 1.2), (1.2, 1.1, 1.4), (1.1, 1.0, 1.3)])
    spread = 1.959964 * 0.1
    assert reading.value == pytest.approx(1.1)
    assert reading.low == pytest.approx(1.1 - math.hypot(0.1, spread))
    assert reading.high == pytest.approx(1.1 + math.hypot(0.2, spread))


def test_the_interval_is_clipped_to_the_range_of_the_metric():
    readings = [(0.98, 0.97, 0.99), (0.02, 0.01, 0.03)]
    reading = over_runs("accuracy", readings)
    assert (reading.low, reading.high) == (0.0, 1.0)
    assert over_runs("overconfidence", readings).low < 0
    assert over_runs("classwise_ece: cat", readings).high == 1.0


def test_missing_values_are_skipped_and_missing_ends_add_nothing():
    reading = over_runs("ece", [(None, None, None), (0.2, None, None)])
    assert (reading.value, reading.low, reading.high) == pytest.approx((0.2, 0.2, 0.2))
    assert over_runs("ece", [(None, None, None)]) is None
    assert over_runs("ece", []) is None
