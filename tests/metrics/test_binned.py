"""Binned errors against loops, hand-worked numbers and their own inequalities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC

pytestmark = pytest.mark.filterwarnings("ignore:.*bins.*:UserWarning")


def binary(confidence, correct):
    """Two-class predictions with the given confidence (above 1/2) and correctness."""
    return Predictions.from_binary(confidence, correct, kind="probs")


def loop_ece(confidence, correct, bins):
    total = 0.0
    for b in range(bins):
        inside = [
            i
            for i, r in enumerate(confidence)
            if (r > b / bins or b == 0) and (r <= (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            conf = math.fsum(confidence[i] for i in inside) / len(inside)
            acc = math.fsum(correct[i] for i in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(conf - acc)
    return total


@given(seed=st.integers(0, 999), n=st.integers(1, 60), bins=st.integers(1, 20))
def test_ece_equals_a_loop(seed, n, bins):
    generator = np.random.default_rng(seed)
    confidence = generator.integers(30, 61, n) / 60
    correct = generator.integers(0, 2, n)
    p = binary(confidence, correct)
    right = np.where(confidence > 0.5, correct, 1 - correct)
    expected = loop_ece(p.confidence.tolist(), right.tolist(), bins)
    assert metrics.ece(p, bins=bins) == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 999), bins=st.integers(1, 10))
def test_inequalities_between_the_errors(seed, bins):
    p = SYNTHETIC["wavy"].sample(80, seed=seed).predictions
    ece = metrics.ece(p, bins=bins)
    assert abs(metrics.overconfidence(p)) <= ece + 1e-12
    assert ece <= metrics.rmsce(p, bins=bins) + 1e-12
    assert metrics.rmsce(p, bins=bins) <= metrics.mce(p, bins=bins) + 1e-12
    assert ece <= metrics.ece(p, bins=2 * bins) + 1e-12  # halves of a bin cannot cancel
    assert metrics.calibration_error(p, bins=bins, norm=3) >= ece - 1e-12


def test_confidence_of_exactly_one_counts_in_the_last_bin():
    # Two examples in (0.9, 1]: mean confidence 0.975, accuracy 1/2, gap 0.475.
    assert metrics.ece(binary([0.95, 1.0], [1, 0]), bins=10) == pytest.approx(0.475)


def test_custom_edges():
    p = binary([0.55, 0.65, 0.95], [1, 0, 1])
    # (0, 0.6]: |0.55 - 1|; (0.6, 1]: |1.6 - 1|.
    assert metrics.ece(p, bins=[0, 0.6, 1]) == pytest.approx((0.45 + 0.6) / 3)


def test_constant_calibrated_prediction_has_no_error():
    p = binary([0.75] * 800, [1] * 600 + [0] * 200)
    assert metrics.ece(p) == pytest.approx(0)
    assert metrics.adaptive_ece(p, bins=1) == pytest.approx(0)
    assert metrics.smece(p) == pytest.approx(0, abs=2e-4)
    assert metrics.sece(p) == pytest.approx(0, abs=1e-9)


def test_repeating_all_examples_changes_nothing():
    p = SYNTHETIC["wavy"].sample(500, seed=0).predictions
    for metric in (metrics.ece, metrics.nll, metrics.brier, metrics.ks, metrics.sece):
        assert metric(Predictions.concat([p, p])) == pytest.approx(metric(p), abs=1e-8)


def test_adaptive_ece_equals_a_loop_over_array_split():
    p = SYNTHETIC["wavy"].sample(1000, seed=0).predictions
    order = np.argsort(p.confidence.numpy())
    parts = np.array_split(order, 15)
    gap = (p.confidence - p.correct).numpy()
    expected = sum(abs(gap[part].sum()) for part in parts) / 1000
    assert metrics.adaptive_ece(p) == pytest.approx(expected, abs=1e-12)


def test_adaptive_bins_do_not_split_ties():
    # array_split alone would put one 0.8 with the 0.6 and leave the result to the order.
    p = binary([0.6, 0.8, 0.8, 0.8], [1, 0, 1, 1])
    # First bin {0.6, 0.8, 0.8, 0.8}: the run of 0.8 begins at position 1, which is in bin 0.
    assert metrics.adaptive_ece(p, bins=2) == pytest.approx(abs(3.0 - 3) / 4)


def test_debiased_rmsce_by_hand():
    # One bin, four examples at 0.75 with accuracy 1/2: 0.0625 - 0.25 / 3 < 0.
    assert metrics.debiased_rmsce(binary([0.75] * 4, [1, 1, 0, 0]), bins=1) == 0
    # At 0.95: 0.2025 - 0.25 / 3.
    p = binary([0.95] * 4, [1, 1, 0, 0])
    assert metrics.debiased_rmsce(p, bins=1) == pytest.approx(math.sqrt(0.2025 - 0.25 / 3))


def test_debiased_ece_subtracts_the_mean_of_a_folded_normal():
    p = binary([0.95] * 40 + [0.6] * 60, [1] * 34 + [0] * 6 + [1] * 33 + [0] * 27)
    generator = np.random.default_rng(0)
    expected = 0.0
    for share, conf, acc, n in ((0.4, 0.95, 0.85, 40), (0.6, 0.6, 0.55, 60)):
        noise = generator.normal(acc, math.sqrt(acc * (1 - acc) / n), 400_000)
        expected += share * (2 * abs(conf - acc) - np.abs(conf - noise).mean())
    assert metrics.debiased_ece(p) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("name", ["calibrated", "overconfident", "wavy"])
def test_debiasing_removes_most_of_the_bias(name):
    synthetic = SYNTHETIC[name]
    truth = synthetic.true_binned_error(15)
    samples = [synthetic.sample(500, seed=seed).predictions for seed in range(100)]
    plain = np.mean([metrics.ece(p) for p in samples]) - truth
    better = np.mean([metrics.debiased_ece(p) for p in samples]) - truth
    assert plain > 0.004
    assert abs(better) < 0.7 * plain
