"""Temperature scaling: the exact optimum, and warnings where there is none."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from calibrant import Predictions, metrics
from calibrant.calibrators import TemperatureScaling


def drawn(n: int, k: int, temperature: float, scale: float = 2.0, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * scale
    labels = (logits / temperature + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits, labels)


@pytest.mark.parametrize(("temperature", "scale"), [(0.3, 1.0), (1.0, 2.0), (2.5, 4.0)])
def test_recovers_a_planted_temperature(temperature, scale):
    found = TemperatureScaling.fit(drawn(50_000, 5, temperature, scale))
    assert found.temperature == pytest.approx(temperature, rel=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_slow_search_of_the_nll(seed):
    data = drawn(500, 4, 1.7, seed=seed)

    def score(log_t: float) -> float:
        return metrics.nll(Predictions(data.logits / np.exp(log_t), data.labels))

    slow = minimize_scalar(score, bounds=(-2, 3), method="bounded", options={"xatol": 1e-10})
    found = TemperatureScaling.fit(data)
    assert np.log(found.temperature) == pytest.approx(slow.x, abs=1e-6)
    assert metrics.nll(data.map(found)) <= slow.fun + 1e-14


def test_the_large_path_equals_the_small_one(monkeypatch):
    data = drawn(4000, 10, 2.0)
    whole = TemperatureScaling.fit(data).temperature
    monkeypatch.setattr("calibrant.calibrators.temperature.SMALL", 1000)
    monkeypatch.setattr("calibrant.calibrators.temperature.ELEMENTS", 64)
    assert TemperatureScaling.fit(data).temperature == pytest.approx(whole, rel=1e-7)


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1.0, 1e2, 1e5])
def test_finds_the_temperature_of_logits_of_any_size(factor):
    data = drawn(2000, 4, 2.0)
    one = TemperatureScaling.fit(data).temperature
    other = TemperatureScaling.fit(Predictions(data.logits * factor, data.labels)).temperature
    assert other == pytest.approx(one * factor, rel=1e-6)


def test_one_error_among_thousands_is_enough_for_an_optimum():
    logits = torch.zeros(2000, 3, dtype=torch.float64)
    logits[:, 0] = 4.0
    labels = torch.zeros(2000, dtype=torch.int64)
    labels[7] = 1
    with pytest.warns(UserWarning, match="never occur"):
        found = TemperatureScaling.fit(Predictions(logits, labels))
    # 1999 labels of probability a and 1 of b = (1 - a) / 2: the best a is 1999 / 2000.
    gap = 4 / found.temperature
    assert 1 / (1 + 2 * np.exp(-gap)) == pytest.approx(1999 / 2000, rel=1e-9)
    assert found.origin.converged


def test_separable_examples_reach_the_lower_bound_with_the_reason():
    data = Predictions([[4.0, 0.0], [0.0, 4.0]], [0, 1])
    with pytest.warns(
        UserWarning, match=r"T hit the lower bound 0.05: every prediction is correct"
    ):
        found = TemperatureScaling.fit(data)
    assert found.temperature == pytest.approx(0.05)
    assert not found.origin.converged
    assert "separable" in found.origin.remark


def test_labels_against_the_logits_reach_the_upper_bound_with_the_reason():
    data = drawn(1000, 3, 1.0)
    with pytest.warns(UserWarning, match=r"T hit the upper bound .*the logits do not predict"):
        found = TemperatureScaling.fit(Predictions(-data.logits, data.labels))
    assert found.temperature >= 100
    assert not found.origin.converged


def test_given_bounds_are_used_and_named():
    with pytest.warns(UserWarning, match="T hit the lower bound 3: the best temperature lies"):
        found = TemperatureScaling.fit(drawn(1000, 3, 1.0), bounds=(3.0, 9.0))
    assert found.temperature == pytest.approx(3.0)
    with pytest.raises(ValueError, match="bounds must be 0 < low < high"):
        TemperatureScaling.fit(drawn(1000, 3, 1.0), bounds=(3.0, 1.0))


def test_a_search_without_convergence_warns_of_it(monkeypatch):
    assert TemperatureScaling.fit(Predictions(torch.zeros(4, 2), [0, 1, 0, 1])).temperature == 1
    monkeypatch.setattr("calibrant.calibrators.temperature.STEPS", 1)
    with pytest.warns(UserWarning, match="no convergence, gradient norm"):
        found = TemperatureScaling.fit(drawn(300, 3, 3.0))
    assert found.origin.gradient_norm > 1e-3


def test_the_published_logits_have_the_temperatures_of_their_readme(real_data):
    for name, split, expected in (
        ("kangsepp_densenet40_c10", "test", 3.156),
        ("netcal_wideresnet164cifar100", "test", 1.111),
        ("akamaster_c10_resnet20", "noise0p08", 6.542),
    ):
        with np.load(real_data / f"logits_{name}.npz") as held:
            data = Predictions(held[f"logits_{split}"], held[f"labels_{split}"])
        assert TemperatureScaling.fit(data).temperature == pytest.approx(expected, abs=1e-3)
