"""Identity, temperature and ensemble: exact optima, and warnings where there is none."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    EnsembleTemperature,
    FocalTemperatureScaling,
    Identity,
    TemperatureScaling,
)
from calibrant.calibrators.base import restore_top_class
from calibrant.calibrators.ensemble import best_weights
from calibrant.data import SYNTHETIC


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


def test_finds_the_temperature_of_logits_of_any_size():
    data = drawn(2000, 4, 2.0)
    one = TemperatureScaling.fit(data).temperature
    for factor in (1e-4, 1e-2, 1e2, 1e5):
        other = TemperatureScaling.fit(Predictions(data.logits * factor, data.labels))
        assert other.temperature == pytest.approx(one * factor, rel=1e-6)


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


@pytest.mark.parametrize("kind", [TemperatureScaling, EnsembleTemperature, FocalTemperatureScaling])
def test_separable_examples_reach_the_lower_bound_with_the_reason(kind):
    words = r"T hit the lower bound 0.05: every prediction is correct"
    with pytest.warns(UserWarning, match=words):
        found = kind.fit(Predictions(torch.eye(3) * 4, [0, 1, 2]))
    assert found.temperature == pytest.approx(0.05)
    assert getattr(found, "gamma", 0) == 0
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


def mixed(n, k, *, temperature, weights, seed=0):
    """Labels drawn from a known mixture."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    truth = (
        weights[0] * (logits / temperature).softmax(1)
        + weights[1] * logits.softmax(1)
        + weights[2] / k
    )
    return Predictions(logits, torch.multinomial(truth, 1, generator=generator)[:, 0])


def test_identity_is_the_softmax_without_parameters():
    logits = torch.randn(5, 3)
    calibrator = Identity(classes=3)
    assert torch.equal(calibrator(logits), torch.log_softmax(logits, 1))
    assert (calibrator.size, dict(calibrator.parameters)) == (0, {})
    examples = Predictions(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    assert Identity.fit(examples).origin.examples == 4


def test_a_mixture_worked_by_hand():
    calibrator = EnsembleTemperature(
        classes=2, temperature=2.0, weights=torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    )
    probs = calibrator(torch.tensor([[0.0, 2 * math.log(3)]], dtype=torch.float64)).exp()
    # Odds of 3 at T = 2 and of 9 at T = 1: 0.5 * 3/4 + 0.25 * 9/10 + 0.25 / 2 = 0.725.
    assert float(probs[0, 1]) == pytest.approx(0.725)


@pytest.mark.parametrize("weights", [(0.6, 0.25, 0.15), (0.7, 0.0, 0.3)])
def test_ensemble_recovers_planted_parameters(weights):
    found = EnsembleTemperature.fit(mixed(200_000, 4, temperature=3.0, weights=weights))
    assert found.temperature == pytest.approx(3.0, rel=0.1)
    assert found.weights.tolist() == pytest.approx(weights, abs=0.04)


@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
@pytest.mark.parametrize("name", SYNTHETIC)
@pytest.mark.parametrize("joint", [True, False])
def test_ensemble_never_fits_worse_than_temperature_scaling(name, joint):
    examples = SYNTHETIC[name].sample(4000, seed=1).predictions
    alone = TemperatureScaling.fit(examples)
    ensemble = EnsembleTemperature.fit(examples, joint=joint)
    assert metrics.nll(examples.map(ensemble)) <= metrics.nll(examples.map(alone)) + 1e-10
    if not joint:
        assert ensemble.temperature == alone.temperature


def test_a_joint_fit_is_a_minimum_that_a_general_optimiser_does_not_beat():
    examples = SYNTHETIC["wavy"].sample(1000, seed=0).predictions
    logits, labels = examples.logits, examples.labels

    def loss(at):
        weights = np.exp(at[1:]) / np.exp(at[1:]).sum()
        members = torch.stack(
            [(logits * math.exp(at[0])).softmax(1), logits.softmax(1), torch.full_like(logits, 0.1)]
        )
        probs = torch.einsum("jnk,j->nk", members, torch.from_numpy(weights))
        return -float(probs[torch.arange(len(labels)), labels].log().mean())

    starts = [[-1.0, 0, 0, 0], [0.5, 0, 0, -3], [1.5, -1, 0, -2]]
    best = min(minimize(loss, start, method="Nelder-Mead").fun for start in starts)
    assert metrics.nll(examples.map(EnsembleTemperature.fit(examples))) <= best + 1e-7


def test_best_weights_meet_the_optimality_conditions():
    generator = np.random.default_rng(0)
    for case in range(20):
        members = -generator.exponential(generator.uniform(0.1, 30), (3, 200))
        members[2] = -math.log(10)
        if case % 4 == 0:
            members[0] = members[1]
        weights = generator.random(200)
        weights /= weights.sum()
        found, loss = best_weights(members, weights, np.full(3, 1 / 3))
        mixture = found @ np.exp(members)
        assert loss == pytest.approx(-weights @ np.log(mixture))
        assert found.sum() == pytest.approx(1)
        # The mean ratio to the mixture is at most 1, and 1 for components with weight.
        ratio = (np.exp(members) / mixture) @ weights
        assert ratio.max() <= 1 + 1e-8
        assert ratio[found > 1e-9] == pytest.approx(1, abs=1e-6)


def test_a_fit_to_huge_gaps_reaches_the_entropy():
    logits = torch.zeros(1000, 4)
    labels = torch.arange(1000) % 4
    logits[torch.arange(1000), labels] = 3000.0
    logits[:50] = logits[:50].roll(1, 1)
    examples = Predictions(logits, labels)
    entropy = -0.95 * math.log(0.95) - 0.05 * math.log(0.05 / 3)
    assert metrics.nll(examples.map(EnsembleTemperature.fit(examples))) == pytest.approx(
        entropy, rel=1e-6
    )


def test_the_uniform_component_alone_preserves_the_predicted_class():
    calibrator = EnsembleTemperature(
        classes=5, temperature=1.0, weights=torch.tensor([0, 0, 1], dtype=torch.float64)
    )
    logits = torch.randn(100, 5)
    assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))


def test_only_rivals_of_the_top_class_are_lowered_and_gradients_pass():
    logits = torch.tensor([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])
    equal = torch.tensor([[-1.0, -1.0, -2.0], [-0.5, -1.5, -1.5]], requires_grad=True)
    moved = restore_top_class(logits, equal)
    assert moved.argmax(1).tolist() == [1, 0]
    assert torch.equal(moved[1], equal[1])
    row = moved[0].detach()
    assert 0 < float(row[1] - row[0]) < 2e-7
    assert float(row.exp().sum()) == pytest.approx(1, abs=1e-6)
    (gradient,) = torch.autograd.grad(moved[1].sum(), equal)
    assert float(gradient.sum()) == 3
