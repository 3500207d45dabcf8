"""The focal calibration map: exact, stable, and its published properties."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant.calibrators import (
    focal_map,
    focal_proper_loss,
    inverse_focal_map,
    raising_threshold,
)
from calibrant.losses import focal

GAMMAS = [0.05, 0.5, 1.0, 2.0, 5.0, 10.0]


def draws(n: int, k: int, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator, dtype=torch.float64) * scale


@pytest.mark.parametrize("gamma", [-0.5, *GAMMAS])
def test_equals_one_over_the_derivative_of_focal_loss(gamma):
    """Its inverse, divided by the sum."""
    logits = draws(500, 6)
    p = torch.softmax(logits, 1).requires_grad_()
    (-((1 - p) ** gamma) * p.log()).sum().backward()
    h = 1 / p.grad.abs()
    torch.testing.assert_close(focal_map(logits, gamma).exp(), h / h.sum(1, keepdim=True))


def test_gamma_zero_changes_nothing():
    logits = draws(500, 6, scale=10)
    torch.testing.assert_close(
        focal_map(logits, 0.0), torch.log_softmax(logits, 1), atol=2e-15, rtol=2e-15
    )


@pytest.mark.parametrize("gamma", GAMMAS)
def test_turns_the_minimiser_of_focal_risk_into_the_true_posterior(gamma):
    for seed in range(5):
        truth = torch.softmax(draws(1, 4, seed=seed), 1)

        def risk(flat: np.ndarray, truth=truth) -> tuple[float, np.ndarray]:
            logits = torch.tensor(flat).reshape(1, 4).requires_grad_()
            p = torch.softmax(logits, 1)
            value = -(truth * (1 - p) ** gamma * p.log()).sum()
            value.backward()
            return float(value.detach()), logits.grad.numpy().ravel()

        found = minimize(risk, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-11})
        mapped = focal_map(torch.tensor(found.x)[None], gamma).exp()
        torch.testing.assert_close(mapped, truth, atol=1e-7, rtol=0)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_inverse_inverts(gamma):
    logits = torch.cat([draws(100, 7, scale) for scale in (0.1, 3.0, 300.0, 1e4)])
    expected = torch.log_softmax(logits, 1)
    back = focal_map(inverse_focal_map(logits, gamma), gamma)
    torch.testing.assert_close(back, expected, atol=1e-12, rtol=1e-12)
    again = inverse_focal_map(focal_map(logits, gamma), gamma)
    torch.testing.assert_close(again.exp(), expected.exp(), atol=1e-11, rtol=0)
    even = inverse_focal_map(torch.zeros(1, 2, dtype=torch.float64), gamma).exp()
    torch.testing.assert_close(even, torch.full((1, 2), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_preserves_the_order_of_all_classes_and_commutes_with_permutations(gamma):
    logits = draws(2000, 8, scale=3)
    mapped = focal_map(logits, gamma)
    assert bool((mapped.argsort(1) == logits.argsort(1)).all())
    order = torch.randperm(8)
    torch.testing.assert_close(focal_map(logits[:, order], gamma), mapped[:, order])


@pytest.mark.parametrize("gamma", [-0.9, -0.5, -0.1])
def test_preserves_the_predicted_class_for_negative_gamma(gamma):
    logits = draws(200_000, 5, scale=3) * torch.logspace(-2, 1, 200_000)[:, None]
    assert bool((focal_map(logits, gamma).argmax(1) == logits.argmax(1)).all())


@pytest.mark.parametrize("gamma", GAMMAS)
class TestConfidence:
    def test_increases_above_the_threshold(self, gamma):
        limit = raising_threshold(gamma)
        assert limit < 0.5
        for classes in (2, 3, 4, 10, 50):
            probs = torch.softmax(draws(5000, classes, scale=2), 1)
            top = probs.max(1).values
            after = focal_map(probs.log(), gamma).exp().max(1).values
            sure = top >= limit
            assert bool((after[sure] >= top[sure] - 1e-12).all())
            if classes <= 3:
                assert bool((after >= top - 1e-12).all())

    def test_decreases_below_the_maximum_of_the_factor(self, gamma):
        # The factor u is unimodal with its maximum at v; below v it only grows with p.
        grid = np.linspace(1e-6, 0.5, 100_001)
        factor = (1 - grid) ** gamma * (1 - gamma * grid * np.log(grid) / (1 - grid))
        maximum = grid[factor.argmax()]
        probs = torch.softmax(draws(20_000, 60, scale=0.7), 1)
        top = probs.max(1).values
        low = top <= maximum
        assert int(low.sum()) > 10
        after = focal_map(probs.log(), gamma).exp().max(1).values
        assert bool((after[low] <= top[low] + 1e-12).all())


@pytest.mark.parametrize(
    ("classes", "top", "gamma", "after"),
    [(100, 0.1, 1.0, 0.0922402), (200, 0.03, 5.0, 0.0251134), (10, 0.12, 1.0, 0.1195464)],
)
def test_with_many_classes_low_confidence_decreases(classes, top, gamma, after):
    probs = torch.full((1, classes), (1 - top) / (classes - 1), dtype=torch.float64)
    probs[0, 0] = top
    found = float(focal_map(probs.log(), gamma).exp().max())
    assert found == pytest.approx(after, abs=1e-6)
    assert found < top


def test_thresholds_above_which_confidence_increases():
    known = {0.01: 0.4981, 0.1: 0.4814, 0.5: 0.4215, 1.0: math.exp(-1), 5.0: 0.1968, 10: 0.1307}
    found = {gamma: raising_threshold(gamma) for gamma in known}
    assert found == pytest.approx(known, abs=6e-5)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.0, 5.0])
def test_log_odds_of_two_classes_lie_between_two_temperatures_and_become_linear(gamma):
    odds = torch.linspace(1e-3, 40, 4000, dtype=torch.float64)
    mapped = focal_map(torch.stack([odds * 0, odds], 1), gamma)
    after = mapped[:, 1] - mapped[:, 0]
    slope = gamma + (1 + gamma * (1 - math.log(2))) / (1 + gamma * math.log(2))
    assert bool((after <= (gamma + 1) * odds + 1e-12).all())
    assert bool((after >= slope * odds - 1e-12).all())
    assert slope >= gamma + 1 - math.log(gamma + 1) / 2
    assert float(after[0] / odds[0]) == pytest.approx(slope, abs=1e-5)
    line = (gamma + 1) * odds - math.log(1 + gamma)
    assert float((after - line)[-1].abs()) < 1e-9


@pytest.mark.parametrize("gamma", [-0.5, 0.3, 1.0, 5.0])
def test_no_nan_at_a_gap_of_ten_thousand_in_float32(gamma):
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 1e4, 1e4 - 1], [20.0, 0.0, 0.0]])
    logits.requires_grad_()
    mapped = focal_map(logits, gamma)
    mapped.sum().backward()
    assert bool(mapped.isfinite().all())
    assert bool(logits.grad.isfinite().all())
    exact = focal_map(logits.detach().double(), gamma)
    torch.testing.assert_close(mapped.detach().double(), exact, atol=5e-6, rtol=1e-6)


@pytest.mark.parametrize("gamma", [-0.5, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_of_zero_stay_zero(gamma, dtype):
    probs = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.2, 0.0, 0.8]], dtype=dtype)
    mapped = focal_map(probs.log(), gamma).exp()
    assert bool((mapped[probs == 0] == 0).all())
    torch.testing.assert_close(mapped.sum(1), torch.ones(3, dtype=dtype))


def test_gradients_agree_with_finite_differences():
    logits = draws(6, 4, scale=3).requires_grad_()
    gamma = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(focal_map, (logits, gamma))


@pytest.mark.parametrize("gamma", GAMMAS)
class TestProperLoss:
    def test_focal_loss_is_the_proper_loss_of_the_mapped_output(self, gamma):
        logits, labels = draws(300, 5), torch.arange(300) % 5
        composed = focal_proper_loss(focal_map(logits, gamma), labels, gamma=gamma)
        torch.testing.assert_close(composed, focal(logits, labels, gamma=gamma))

    def test_is_minimal_at_the_truth_where_focal_loss_is_not(self, gamma):
        def risk(logits: torch.Tensor, loss) -> torch.Tensor:
            every = torch.stack(
                [loss(logits, torch.full((len(logits),), y), gamma=gamma) for y in range(4)], 1
            )
            return (truth * every).sum(1)

        truth = torch.softmax(draws(40, 4), 1)
        honest = risk(truth.log(), focal_proper_loss)
        for seed in range(2):
            other = truth.log() + 0.3 * draws(40, 4, scale=1, seed=seed)
            assert bool((risk(other, focal_proper_loss) > honest).all())
        minimiser = inverse_focal_map(truth.log(), gamma)
        assert bool((risk(minimiser, focal) < risk(truth.log(), focal)).all())


def test_invalid_gammas_are_refused():
    for gamma in (-1.0, -2.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="gamma must be above -1 and finite"):
            focal_map(torch.zeros(1, 3), gamma)
    with pytest.raises(ValueError, match=r"gamma must be at least 0 to be inverted, got -0\.5"):
        inverse_focal_map(torch.zeros(1, 3), -0.5)
    with pytest.raises(ValueError, match="gamma must be above 0, got 0"):
        raising_threshold(0.0)
