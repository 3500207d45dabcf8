"""Multipliers of the augmented Lagrangian: golden values, updates, bounds, order."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, methods
from calibrant.losses import PENALTIES, margin_constraint

TOY = torch.tensor([[4, 1, -2], [0.5, 2.5, 1], [-6, 3, 8], [0.2, 0.1, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2, 1])


def predictions(logits: torch.Tensor = TOY) -> Predictions:
    return Predictions(logits, torch.zeros(len(logits), dtype=torch.int64))


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [("phr", [1.500001, 0.500001, 0.500001]), ("p2", [4.500004, 0.312502, 0.500002])],
)
def test_one_update_on_the_toy_batch_gives_the_golden_multipliers(penalty, expected):
    method = methods.build("cals_alm", classes=3, margin=2.0, penalty=penalty)
    logged = method.after_epoch(predictions())
    torch.testing.assert_close(
        method.multipliers, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-6
    )
    torch.testing.assert_close(method.last, torch.tensor([1, 0.0125, -0.0375], dtype=torch.float64))
    assert logged["multiplier_max"] == pytest.approx(max(expected), abs=2e-6)


def test_updates_computed_by_hand():
    # Small multipliers grow slowly with P3.
    method = methods.build("cals_alm", classes=3, margin=2.0, penalty="p3")
    method.after_epoch(predictions())
    assert method.multipliers.tolist() == pytest.approx([4e-6, 2e-6, 2e-6], rel=0.5)
    # All but the largest logit are 6 below it: h = (6 - 2) / 2 = 2, and PHR adds rho h.
    logits = torch.tensor([[6.0, 0.0, 0.0]], dtype=torch.float64).repeat(5, 1)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho=1.5)
    method.after_epoch(predictions(logits))
    assert method.multipliers.tolist() == pytest.approx([1e-6, 3 + 1e-6, 3 + 1e-6])
    # No constraint is active: multipliers fall to the smallest.
    method = methods.build("cals_alm", classes=3, margin=100.0)
    method.multipliers = torch.full((3,), 0.5, dtype=torch.float64)
    method.after_epoch(predictions())
    assert method.multipliers.tolist() == [1e-6, 1e-6, 1e-6]
    # Clamped before the mean: 5 and -1 of the second class become 2 and 1e-6, not min(2.5, 2).
    logits = torch.tensor([[6.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    method = methods.build("cals_alm", classes=2, margin=1.0, most=2.0)
    method.after_epoch(predictions(logits))
    assert method.multipliers[1].item() == pytest.approx((2 + 1e-6) / 2)


def test_rho_grows_where_the_constraint_does_not_fall_and_stays_within_its_bounds():
    # Two logits exactly a margin below the largest, h = 0 in every epoch: satisfied.
    logits = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho=1.5, rho_step=1)
    for _ in range(3):
        method.after_epoch(predictions(logits))
    assert method.rho.tolist() == [1.5] * 3
    method = methods.build("cals_alm", classes=3, margin=2.0, rho_step=1)
    method.after_epoch(predictions())
    assert method.rho.tolist() == [1, 1, 1]
    method.after_epoch(predictions())
    # The same means again: those above zero did not fall to nine tenths; the third is below zero.
    assert method.rho.tolist() == [1.2, 1.2, 1.0]
    for _ in range(20):
        method.after_epoch(predictions())
    assert method.rho.tolist() == [10, 10, 1]


def test_the_multiplier_uses_rho_before_its_growth():
    method = methods.build("cals_alm", classes=3, margin=2.0, rho_step=1)
    method.after_epoch(predictions())
    before = method.multipliers.clone()
    method.after_epoch(predictions())
    h = margin_constraint(TOY, margin=2.0)
    derivative = PENALTIES["phr"].derivative(h, before, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(method.multipliers, derivative.clamp(1e-6, 1e6).mean(0))


def test_the_order_of_validation_examples_does_not_matter():
    one, other = (methods.build("cals_alm", classes=3, margin=2.0) for _ in range(2))
    one.after_epoch(predictions())
    other.after_epoch(predictions(TOY[[2, 0, 3, 1]]))
    torch.testing.assert_close(one.multipliers, other.multipliers, rtol=1e-14, atol=0)


def test_twelve_epochs_equal_the_rules_written_as_a_loop():
    draw = np.random.default_rng(0)
    spreads = (3.0, 5.0, 2.0, 0.4, 0.3, 0.7, 4.0, 4.0, 3.9, 0.1, 6.0, 7.0)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho_step=3, multiplier_step=2)
    multipliers, rho, last = np.full(3, 1e-6), np.ones(3), np.zeros(3)
    changes = set()
    for epoch, spread in enumerate(spreads, 1):
        z = spread * draw.normal((0.0, 1.0, 2.0), size=(7, 3))
        method.after_epoch(predictions(torch.from_numpy(z)))
        h = (z.max(1, keepdims=True) - z - 2.0) / 2.0
        mean = h.mean(0)
        if epoch % 2 == 0:
            terms = np.clip(np.maximum(0, multipliers + rho * h), 1e-6, 1e6)
            multipliers = terms.mean(0)
        if epoch % 3 == 0:
            for k in range(3):
                satisfied = max(mean[k], last[k]) < 0
                changes.add("satisfied" if satisfied else np.sign(mean[k] - last[k]))
                if mean[k] > 0.9 * max(0, last[k]):
                    rho[k] = min(1.2 * rho[k], 10)
        last = mean
        np.testing.assert_allclose(method.multipliers.numpy(), multipliers, rtol=1e-12)
        np.testing.assert_allclose(method.rho.numpy(), rho, rtol=1e-12)
        np.testing.assert_allclose(method.last.numpy(), last, rtol=1e-12)
    assert changes == {"satisfied", 1.0, -1.0}
    assert len(set(rho)) > 1
