"""Gap temperature scaling, against loops, a general optimiser and its limits."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant import Predictions, metrics
from calibrant.calibrators import GapTemperatureScaling, TemperatureScaling
from calibrant.calibrators.gap_temperature import objective


def written_out(row, temperature, b):
    """Log-probabilities of one row, class by class."""
    allowed = sorted(value for value in row if value > -math.inf)
    gap = allowed[-1] - allowed[-2] if len(allowed) > 1 else 0.0
    factor = (1 + gap / temperature) ** b / temperature
    total = sum(math.exp((value - allowed[-1]) * factor) for value in allowed)
    return [(value - allowed[-1]) * factor - math.log(total) for value in row]


def drawn(n, k, temperature, b, seed=0, spread=2.0):
    """Labels drawn from the map of the logits."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(size=(n, k)) * spread)
    true = GapTemperatureScaling(classes=k, temperature=temperature, b=b)(logits).numpy()
    return Predictions(logits, (true + generator.gumbel(size=(n, k))).argmax(1))


@pytest.mark.parametrize(("temperature", "b"), [(1.7, -0.6), (0.5, 1.5), (2.0, -1.0), (1.0, 0.0)])
def test_rows_are_mapped_as_written_out(temperature, b):
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 4)) * 3)
    logits[::3, 1], logits[::6, 2], logits[::9, 0] = -torch.inf, -torch.inf, -torch.inf
    # A tie, and a single allowed class.
    logits[1, :2], logits[0, :3] = 5.0, -torch.inf
    found = GapTemperatureScaling(classes=4, temperature=temperature, b=b)(logits)
    expected = [written_out(row, temperature, b) for row in logits.tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("b", [-1.0, -0.4, 2.0])
def test_two_classes_have_an_odd_increasing_function_of_the_log_odds(b):
    odds = torch.linspace(-30, 30, 401, dtype=torch.float64)
    fitted = GapTemperatureScaling(classes=2, temperature=1.5, b=b)
    log_probs = fitted(torch.stack([torch.zeros(401).double(), odds], 1))
    mapped = log_probs[:, 1] - log_probs[:, 0]
    torch.testing.assert_close(mapped, -mapped.flip(0))
    assert bool((mapped.diff() > 0).all())


@pytest.mark.parametrize("point", [(0.3, 0.0), (-0.7, -0.9), (0.1, 1.2)])
def test_the_written_out_derivatives_are_those_of_the_loss(point):
    data, weights = drawn(60, 4, 1.0, 0.0), np.random.default_rng(1).random(60)
    logits, labels = data.logits.numpy(), data.labels.numpy()
    gaps = np.diff(np.sort(logits, 1)[:, -2:])[:, 0]
    loss, gradient, hessian = objective(logits, gaps, labels, weights)(np.array(point))

    def exact(at):
        scale = (at[0] + at[1] * torch.log1p(torch.from_numpy(gaps) * at[0].exp())).exp()
        log_probs = (data.logits * scale[:, None]).log_softmax(1)[torch.arange(60), data.labels]
        prior = 5 * at[1] ** 2 / weights.sum()
        return prior - (log_probs * torch.from_numpy(weights / weights.sum())).sum()

    at = torch.tensor(point, dtype=torch.float64)
    assert loss == pytest.approx(float(exact(at)), rel=1e-12)
    wanted = torch.func.grad(exact)(at), torch.func.hessian(exact)(at)
    np.testing.assert_allclose(gradient, wanted[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(hessian, wanted[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "b"), [(60, 0.0), (2000, -0.7), (2000, 0.8)])
def test_the_fit_is_the_best_that_a_general_optimiser_finds(n, b):
    data = drawn(n, 5, 1.3, b)

    def loss(at):
        fitted = GapTemperatureScaling(classes=5, temperature=math.exp(at[0]), b=float(at[1]))
        return metrics.nll(data.map(fitted)) + 5 * at[1] ** 2 / n

    found = GapTemperatureScaling.fit(data)
    starts = [[math.log(1.3), start] for start in (-0.8, 1.0)]
    options = {"xatol": 1e-5, "fatol": 1e-10}
    bounds = [(-3, 3), (-1, 3)]
    best = min(
        minimize(loss, s, method="Nelder-Mead", bounds=bounds, options=options).fun for s in starts
    )
    assert loss([math.log(found.temperature), found.b]) <= best + 1e-9
    assert metrics.nll(data.map(found)) <= metrics.nll(data.map(TemperatureScaling.fit(data)))
    assert found.origin.converged
    assert found.origin.gradient_norm < 1e-6
    # Few examples determine b badly.
    assert n < 100 or found.b == pytest.approx(b, abs=0.25)


def test_a_multiple_of_the_logits_gives_the_same_multiple_of_the_temperature(monkeypatch):
    data = drawn(2000, 4, 1.5, -0.5)
    found = GapTemperatureScaling.fit(data)
    monkeypatch.setattr("calibrant.calibrators.gap_temperature.ROUGH", 2000)
    for scale in (1e-3, 1e3):
        other = GapTemperatureScaling.fit(Predictions(data.logits * scale, data.labels))
        assert other.temperature == pytest.approx(scale * found.temperature, rel=1e-4)
        assert other.b == pytest.approx(found.b, abs=1e-4)


def test_bounds_without_an_optimum_are_remarked():
    odds = np.linspace(-3, 3, 60)
    separable = Predictions.from_binary(odds, (odds > 0).astype(int), kind="logits")
    with pytest.warns(UserWarning, match="T hit the lower bound"):
        found = GapTemperatureScaling.fit(separable)
    assert (found.b, found.origin.converged) == (0.0, False)
    # Wrong at small gaps only: the steeper the better.
    wrong = np.abs(odds) < 1.5
    labels = np.where(wrong & (np.arange(60) % 2 > 0), odds < 0, odds > 0).astype(int)
    many = Predictions.from_binary(odds, labels, kind="logits").reweighted(np.full(60, 1e3))
    with pytest.warns(UserWarning, match="b hit its bound"):
        found = GapTemperatureScaling.fit(many)
    assert (found.b, found.origin.converged) == (3.0, False)
