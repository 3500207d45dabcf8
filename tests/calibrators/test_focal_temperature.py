"""Focal temperature scaling: never worse than temperature scaling, by derivatives or by grid."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    FocalTemperatureScaling,
    TemperatureScaling,
    focal_landscape,
    focal_map,
)
from calibrant.calibrators.focal_gradients import focal_objective
from calibrant.calibrators.focal_temperature import CRITERIA, GRID_GAMMAS, GRID_TEMPERATURES


def drawn(n: int, k: int, temperature: float, gamma: float, seed: int = 0) -> Predictions:
    """Labels drawn from the map of the logits."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(size=(n, k)) * 2)
    true = focal_map(logits / temperature, gamma).numpy()
    return Predictions(logits, (true + generator.gumbel(size=(n, k))).argmax(1))


@pytest.mark.parametrize(("inverse", "gamma"), [(1.0, 0.0), (0.5, 2.0), (2.0, -0.3), (0.7, 7.0)])
def test_the_written_out_derivatives_are_those_of_the_map(inverse, gamma):
    data = drawn(200, 6, 1.0, 0.0)
    # Confidences that round to one, correct and wrong, and a sum that underflows.
    logits = data.logits.clone()
    logits[0, 2] += 60
    logits[1, int(data.labels[1])] += 60
    logits[2, int(data.labels[2])] += 5000
    weights = np.random.default_rng(0).random(200)
    loss, gradient = focal_objective(logits.numpy(), data.labels.numpy(), weights)(inverse, gamma)
    b, g = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (inverse, gamma))
    mapped = focal_map(logits * b, g)[torch.arange(200), data.labels]
    exact = -(mapped * torch.from_numpy(weights / weights.sum())).sum()
    exact.backward()
    assert loss == pytest.approx(float(exact.detach()), rel=1e-12)
    np.testing.assert_allclose(gradient, [float(b.grad), float(g.grad)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("temperature", "gamma"), [(1.5, 2.0), (2.0, -0.4), (1.0, 0.0)])
def test_recovers_planted_parameters(temperature, gamma):
    data = drawn(20_000, 10, temperature, gamma)
    found = FocalTemperatureScaling.fit(data)
    planted = FocalTemperatureScaling(classes=10, temperature=temperature, gamma=gamma)
    assert metrics.nll(data.map(found)) <= metrics.nll(data.map(planted))
    # Below zero the score is so flat that thousands of examples do not tell where gamma was.
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.gamma == pytest.approx(gamma, abs=0.25 if gamma >= 0 else 0.5)
    assert found.origin.gradient_norm < 1e-6
    gain = metrics.nll(data.map(TemperatureScaling.fit(data))) - metrics.nll(data.map(found))
    assert gain > (0.003 if gamma > 0 else 0)


def test_the_exact_search_is_at_least_as_good_as_the_published_grid():
    data = drawn(500, 6, 1.7, 1.0)
    exact = FocalTemperatureScaling.fit(data)
    grid = FocalTemperatureScaling.fit(data, search="grid")
    assert grid.gamma in GRID_GAMMAS
    assert grid.temperature in GRID_TEMPERATURES
    assert metrics.nll(data.map(exact)) <= metrics.nll(data.map(grid))
    # Zero is always a candidate.
    flat = drawn(500, 3, 2.0, 0.0)
    found = FocalTemperatureScaling.fit(flat, search="grid", gammas=[5.0], temperatures=[2.0])
    assert found.gamma == 0


@pytest.mark.parametrize("criterion", ["brier", "ece", "adaptive_ece"])
def test_other_criteria_are_no_worse_than_their_grid_and_than_temperature_scaling(criterion):
    data = drawn(200, 4, 2.0, 1.0)
    settings = {"gammas": [0.0, 1.0, 3.0], "temperatures": np.geomspace(0.5, 4, 12).tolist()}
    exact, grid, plain = (
        CRITERIA[criterion](data.map(found))
        for found in (
            FocalTemperatureScaling.fit(data, criterion=criterion, **settings),
            FocalTemperatureScaling.fit(data, criterion=criterion, search="grid", **settings),
            TemperatureScaling.fit(data),
        )
    )
    assert exact <= grid + 1e-9
    assert grid <= plain + (1e-3 if criterion == "brier" else 0.01)


def test_the_large_path_equals_the_small_one(monkeypatch):
    data = drawn(3000, 8, 1.5, 1.0)
    whole = FocalTemperatureScaling.fit(data)
    monkeypatch.setattr("calibrant.calibrators.focal_temperature.ROUGH", 4000)
    monkeypatch.setattr("calibrant.calibrators.focal_gradients.ELEMENTS", 512)
    parts = FocalTemperatureScaling.fit(data)
    assert parts.gamma == pytest.approx(whole.gamma, abs=1e-3)
    assert metrics.nll(data.map(parts)) == pytest.approx(metrics.nll(data.map(whole)), abs=1e-9)


def test_two_classes_give_a_warning():
    with pytest.warns(UserWarning, match="two classes gamma and temperature are not identifiable"):
        FocalTemperatureScaling.fit(drawn(500, 2, 2.0, 0.0))


def test_the_landscape_holds_the_criterion_at_every_point():
    data = drawn(300, 4, 1.0, 0.0)
    for criterion in CRITERIA:
        found = focal_landscape(
            data, criterion=criterion, gammas=[0.0, 2.0], temperatures=[0.7, 1.0, 3.0]
        )
        mapped = data.map(FocalTemperatureScaling(classes=4, temperature=3.0, gamma=2.0))
        assert found.shape == (2, 3)
        assert found[1, 2] == pytest.approx(CRITERIA[criterion](mapped), rel=1e-9)


def test_invalid_settings_are_refused(as_a_user_runs_it):
    data = drawn(50, 3, 1.0, 0.0)
    with pytest.raises(ValueError, match="criterion must be one of"):
        FocalTemperatureScaling.fit(data, criterion="accuracy")
    with pytest.raises(ValueError, match="search must be 'exact' or 'grid'"):
        FocalTemperatureScaling.fit(data, search="random")


@pytest.mark.parametrize("seed", [39, 46, 102, 115, 124, 145])
def test_few_examples_that_are_nearly_separable_do_not_overflow(seed):
    # Steps of the search once went to logits of any size here.
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, 144)
    logits = generator.normal(size=(144, 10)) * generator.uniform(0.3, 0.8)
    logits[np.arange(144), labels] += generator.gamma(6, 0.5, size=144)
    for row in range(5):
        wrong = (labels[row] + 1) % 10
        logits[row, wrong] = logits[row, labels[row]] + generator.uniform(0.2, 1.5)
    data = Predictions(logits.astype(np.float32), labels)
    fitted, plain = FocalTemperatureScaling.fit(data), TemperatureScaling.fit(data)
    assert metrics.nll(data.map(fitted)) <= metrics.nll(data.map(plain)) + 1e-12
    assert fitted.origin.converged
