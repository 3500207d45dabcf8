"""Kernel calibration, against sums over all examples."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

from calibrant import Predictions, metrics
from calibrant.calibrators import KernelCalibration, TemperatureScaling, kernel_regression
from calibrant.calibrators.kernel_regression import Counts, leave_one_out


def binary(n, truth, *, seed=0, spread=2.0):
    """Log-odds, and labels that are 1 with probability sigmoid(truth(log-odds))."""
    generator = np.random.default_rng(seed)
    odds = spread * generator.standard_normal(n)
    labels = generator.random(n) < expit(truth(odds))
    return Predictions.from_binary(odds, labels.astype(np.int64), kind="logits")


def function_of(fitted, odds):
    odds = torch.as_tensor(odds, dtype=torch.float64)
    log_probs = fitted(torch.stack([torch.zeros_like(odds), odds], 1))
    return (log_probs[:, 1] - log_probs[:, 0]).numpy()


def direct(odds, own, weights, inverse, bandwidth, at):
    """The function at some log-odds, by a loop over all examples."""
    order = np.argsort(odds)
    share = weights[order].cumsum() / weights.sum()
    low, median, high = (odds[order][np.argmax(share >= q - 1e-12)] for q in (0.1, 0.5, 0.9))

    def coordinate(x):
        return math.asinh(4 * (x - median) / (high - low)) / 4

    values = []
    for x in at:
        mass = residual = 0.0
        for each, hit, weight in zip(odds, own, weights, strict=True):
            gap = (coordinate(x) - coordinate(each)) / bandwidth
            near = weight * math.exp(-gap * gap / 2)
            mass += near
            residual += near * (hit - expit(each * inverse))
        values.append(expit(x * inverse) + residual / (mass + 10))
    limit = 0.5 / (weights.sum() + 1)
    return logit(np.clip(values, limit, 1 - limit))


@pytest.mark.parametrize("n", [30, 400])
def test_the_function_is_the_sum_over_all_examples(n):
    data = binary(n, lambda x: 2 * np.tanh(x), seed=1)
    data = data.reweighted(np.arange(n) % 3)
    fitted = KernelCalibration.fit(data)
    odds = (data.logits[:, 1] - data.logits[:, 0]).numpy()
    at = np.linspace(odds.min(), odds.max(), 40)
    inverse = 1 / TemperatureScaling.fit(data).temperature
    weights = data.example_weights
    expected = direct(odds, data.labels.numpy(), weights, inverse, fitted.bandwidth, at)
    np.testing.assert_allclose(function_of(fitted, at), expected, atol=0.02)


def test_leave_one_out_is_the_loss_of_functions_without_each_example():
    generator = np.random.default_rng(0)
    grid = np.linspace(-1, 1, 8)
    weights, ones = generator.integers(1, 4, 8).astype(float), generator.integers(0, 2, 8)
    hits, guide = weights * ones, expit(grid)
    kernel = np.exp(-((grid[:, None] - grid) ** 2) / 2 / 0.3**2)
    counts = Counts(grid, grid[None], weights[None], hits[None])
    found = leave_one_out(counts, guide[None], kernel, 0.01)
    points = np.repeat(np.arange(8), weights.astype(int))
    total = 0.0
    for own in range(len(points)):
        rest = np.delete(points, own)
        near = kernel[points[own], rest]
        residual = (near * (ones[rest] - guide[rest])).sum() / (near.sum() + 10)
        prob = np.clip(guide[points[own]] + residual, 0.01, 0.99)
        total -= math.log(prob if ones[points[own]] else 1 - prob)
    assert found == pytest.approx(total, rel=1e-12)


def test_the_bandwidth_has_the_lowest_leave_one_out_loss_and_narrows_with_curvature(monkeypatch):
    straight = KernelCalibration.fit(binary(3000, lambda x: x / 2))
    wavy = KernelCalibration.fit(binary(3000, lambda x: 2 * np.sin(2 * x)))
    assert straight.bandwidth > 10 * wavy.bandwidth
    inner = np.linspace(-3, 3, 60)
    np.testing.assert_allclose(function_of(wavy, inner), 2 * np.sin(2 * inner), atol=0.7)
    np.testing.assert_allclose(function_of(straight, inner), inner / 2, atol=0.2)
    data, test = (binary(400, lambda x: 2 * np.sin(2 * x), seed=seed) for seed in (2, 3))
    chosen = KernelCalibration.fit(data)
    losses = []
    for bandwidth in kernel_regression.BANDWIDTHS:
        monkeypatch.setattr(kernel_regression, "BANDWIDTHS", np.array([bandwidth]))
        losses.append(metrics.nll(test.map(KernelCalibration.fit(data))))
    assert metrics.nll(test.map(chosen)) < min(losses) + 0.01


def test_far_from_all_examples_the_function_is_that_of_temperature_scaling():
    odds = np.concatenate([np.linspace(-1, 1, 200), [60.0]])
    labels = np.append(np.arange(200) % 2, 1)
    data = Predictions.from_binary(odds, labels, kind="logits")
    fitted, plain = KernelCalibration.fit(data), TemperatureScaling.fit(data)
    between, bound = function_of(fitted, [20.0])[0], math.log(2 * 201 + 1)
    expected = min(20 / plain.temperature, bound)
    assert between == pytest.approx(expected, abs=0.1)
    # Constant beyond the ends, and bounded.
    far = function_of(fitted, [60.0, 1e6, -1.0, -1e6])
    assert far[0] == pytest.approx(far[1])
    assert far[2] == pytest.approx(far[3])
    assert np.abs(far).max() <= bound + 1e-9


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_small_tied_and_separable_data_give_finite_results():
    generator = np.random.default_rng(0)
    odds = generator.normal(size=40) * 3
    cases = {
        "separable": (odds, odds > 0),
        "always wrong": (odds, odds < 0),
        "equal": (np.zeros(40), np.arange(40) % 4 == 0),
        "equal and far": (np.full(40, 1e4), np.arange(40) % 2 == 0),
        "two scores": (np.repeat([-1.0, 2.0], 20), np.arange(40) % 3 == 0),
        "one outlier": (np.append(odds[:39], 1e20), generator.random(40) < 0.5),
        "two examples": (np.array([-1.0, 1.0]), np.array([True, False])),
    }
    for name, (x, own) in cases.items():
        data = Predictions.from_binary(x, own.astype(int), kind="logits")
        assert metrics.nll(data.map(KernelCalibration.fit(data))) <= math.log(2) + 0.15, name
