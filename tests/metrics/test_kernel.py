"""Kernel errors: the fast paths against sums over all pairs, and their limits."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.losses.sece import smooth_gap
from calibrant.metrics import kernel


@pytest.mark.parametrize("form", ["points", "leave_one_out", "grid"])
@pytest.mark.parametrize("bandwidth", [0.003, 0.01, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("name", ["wavy", "saturated"])
def test_the_grid_equals_the_sum_over_pairs(form, bandwidth, name):
    p = SYNTHETIC[name].sample(700, seed=0).predictions
    exact = float(smooth_gap(p.confidence, p.correct, bandwidth=bandwidth, form=form))
    assert metrics.sece(p, bandwidth=bandwidth, form=form) == pytest.approx(exact, abs=1e-6)


def test_the_sum_over_pairs_equals_two_loops():
    p = SYNTHETIC["wavy"].sample(40, seed=0).predictions
    r, c, h = p.confidence.tolist(), p.correct.tolist(), 0.05
    for leave_out in (False, True):
        total = 0.0
        for i in range(40):
            others = [j for j in range(40) if not (leave_out and i == j)]
            k = [math.exp(-((r[i] - r[j]) ** 2) / (2 * h * h)) for j in others]
            total += abs(sum(a * c[j] for a, j in zip(k, others, strict=True)) / sum(k) - r[i])
        form = "leave_one_out" if leave_out else "points"
        assert metrics.sece(p, bandwidth=h, form=form) == pytest.approx(total / 40, abs=1e-12)


def test_limits_of_the_bandwidth():
    p = SYNTHETIC["overconfident"].sample(100, seed=0).predictions
    r, c = p.confidence, p.correct
    assert metrics.sece(p, bandwidth=1e5) == pytest.approx(float((c.mean() - r).abs().mean()))
    assert metrics.sece(p, bandwidth=1e-9) == pytest.approx(float((c - r).abs().mean()))


def test_leave_one_out_of_an_isolated_example_uses_its_nearest_neighbour():
    confidence = np.concatenate([np.full(600, 0.6), [0.95]])
    p = Predictions.from_binary(confidence, [1] * 360 + [0] * 240 + [1], kind="probs")
    value = metrics.sece(p, bandwidth=0.001, form="leave_one_out")
    # All 600 see accuracy 360/600 or 359/599, 360/599 without themselves; the last sees 0.6.
    among = (360 * abs(359 / 599 - 0.6) + 240 * abs(360 / 599 - 0.6)) / 601
    assert value == pytest.approx(among + 0.35 / 601, abs=1e-8)


@pytest.mark.parametrize("n", [100, 400])
def test_leave_one_out_of_a_weight_below_one_excludes_the_example(n):
    p = SYNTHETIC["wavy"].sample(n, seed=0).predictions
    quarter = p.reweighted(np.full(n, 0.25))
    plain, light = (metrics.sece(q, bandwidth=0.05, form="leave_one_out") for q in (p, quarter))
    assert light == pytest.approx(plain, abs=1e-7)


def test_leave_one_out_of_a_single_example_is_zero():
    p = Predictions([[1.0, 0.0]], [0])
    assert metrics.sece(p, form="leave_one_out") == 0


def smece_by_quadrature(r, c, sigma):
    """Reflected Gaussian smoothing on a fine grid, images up to five reflections away."""
    t = (np.arange(20_000) + 0.5) / 20_000
    total = np.zeros_like(t)
    for center, residual in zip(r, c - r, strict=True):
        for m in range(-3, 4):
            for image in (2 * m + center, 2 * m - center):
                total += residual * np.exp(-((t - image) ** 2) / (2 * sigma**2))
    density = total / (sigma * math.sqrt(2 * math.pi)) / len(r)
    return np.abs(density).mean()


@pytest.mark.parametrize("name", ["wavy", "overconfident", "saturated"])
def test_smece_is_the_width_that_equals_its_own_error(name):
    p = SYNTHETIC[name].sample(60, seed=2).predictions
    value = metrics.smece(p)
    direct = smece_by_quadrature(p.confidence.numpy(), p.correct.numpy(), value)
    assert direct == pytest.approx(value, abs=1e-5)


def test_smece_is_at_most_the_mean_absolute_gap_and_at_least_the_mean_gap():
    p = SYNTHETIC["wavy"].sample(5000, seed=0).predictions
    assert abs(metrics.overconfidence(p)) - 1e-6 <= metrics.smece(p)
    assert metrics.smece(p) <= float((p.confidence - p.correct).abs().mean())


def test_smece_of_perfect_certainty_is_zero():
    assert metrics.smece(Predictions([[40.0, 0.0]] * 10, [0] * 10)) == pytest.approx(0, abs=2e-4)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="bandwidth must be positive, got 0"):
        metrics.sece(Predictions([[1.0, 0.0]], [0]), bandwidth=0)
    with pytest.raises(ValueError, match="form must be one of"):
        metrics.sece(Predictions([[1.0, 0.0]], [0]), form="exact")
    many = Predictions(
        torch.randn(kernel.ALL_PAIRS + 1, 2), torch.zeros(kernel.ALL_PAIRS + 1).int()
    )
    with pytest.raises(ValueError, match="bandwidth must be at least 1e-5"):
        metrics.sece(many, bandwidth=1e-7)
