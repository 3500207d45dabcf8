"""Margin smoothing with schedules, and weights per class: CALS-HR and CALS-ALM."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import data, losses, methods, models, training
from calibrant.data import Batch
from calibrant.predictions import Predictions

TOY = torch.tensor([[4.0, 1, -2], [0.5, 2.5, 1], [-6, 3, 8], [0.2, 0.1, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2, 1])


def val(logits: torch.Tensor = TOY) -> Predictions:
    return Predictions(logits, LABELS[:1].repeat(len(logits)))


def test_the_first_epoch_of_the_rule_is_margin_smoothing_with_golden_scores():
    batch = Batch(TOY, LABELS, torch.arange(4))
    rule = methods.build("cals_hr", classes=3, margin=2.0).loss(nn.Identity(), batch)
    expected = losses.margin_smoothing(TOY, LABELS, margin=2.0, alpha=0.1)
    torch.testing.assert_close(rule, expected)
    penalty = (rule - losses.cross_entropy(TOY, LABELS)).mean()
    assert float(penalty) == pytest.approx(1 / 6, abs=1e-12)
    method = methods.build("cals_hr", classes=3, margin=2.0)
    method.after_epoch(val())
    torch.testing.assert_close(method.scores, torch.tensor([0.3, 0.1, 0.1], dtype=torch.float64))
    torch.testing.assert_close(method.alpha, torch.full((3,), 0.1, dtype=torch.float64))


def test_weights_grow_where_the_score_grew_fall_where_it_fell_and_otherwise_stay():
    method = methods.build("cals_hr", classes=3, margin=1.0, factor=2.0, tolerance=1.5)
    # Distances beyond the margin: class 1 by 4, class 2 by 9; then 8, 2; class 0 is the largest.
    method.after_epoch(val(torch.tensor([[0.0, -5, -10]])))
    record = method.after_epoch(val(torch.tensor([[0.0, -9, -3]])))
    assert record["alpha"] == pytest.approx([0.1, 0.2, 0.05])
    # The score contains the weight: 0.2 * 8 is twice as large, though the distance is the same.
    method.after_epoch(val(torch.tensor([[0.0, -9, -3]])))
    assert method.alpha.tolist() == pytest.approx([0.1, 0.4, 0.025])
    method = methods.build("cals_hr", classes=3, margin=1.0, factor=2.0, tolerance=1.5)
    # Beyond the margin by 4 and by 9, then by 5 and by 7: within the tolerance.
    method.after_epoch(val(torch.tensor([[0.0, -5, -10]])))
    record = method.after_epoch(val(torch.tensor([[0.0, -6, -8]])))
    assert record["alpha"] == pytest.approx([0.1, 0.1, 0.1])


def test_weights_stay_within_their_bounds_and_change_every_step_epochs():
    method = methods.build("cals_hr", classes=2, margin=0.0, factor=10.0, most=0.5, step=2)
    for reach in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        method.after_epoch(val(torch.tensor([[0.0, -reach]])))
    assert method.epoch == 6
    assert method.alpha.tolist() == pytest.approx([0.1, 0.5])
    method = methods.build("cals_hr", classes=2, margin=0.0, factor=10.0, least=0.05)
    for reach in (32.0, 8.0, 2.0):
        method.after_epoch(val(torch.tensor([[0.0, -reach]])))
    assert method.alpha.tolist() == pytest.approx([0.1, 0.05])
    # A factor of one never changes them.
    method = methods.build("cals_hr", classes=3, margin=1.0, factor=1.0)
    for seed in range(4):
        torch.manual_seed(seed)
        method.after_epoch(val(torch.randn(50, 3) * 5))
    assert method.alpha.tolist() == [0.1] * 3


def test_the_order_of_validation_and_its_chunks_do_not_matter(monkeypatch):
    torch.manual_seed(0)
    logits = torch.randn(101, 3, dtype=torch.float64) * 8
    whole = methods.build("cals_hr", classes=3, margin=1.0)
    whole.after_epoch(val(logits))
    monkeypatch.setattr("calibrant.methods.class_margins.CHUNK", 7)
    parts = methods.build("cals_hr", classes=3, margin=1.0)
    parts.after_epoch(val(logits.flip(0)))
    torch.testing.assert_close(parts.scores, whole.scores, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.1, 0.1]),
        ({"schedule": "add", "change": 0.2}, [0.3, 0.5, 0.6]),
        ({"schedule": "multiply", "change": 2.0}, [0.2, 0.4, 0.6]),
        ({"schedule": "step", "change": 3.0, "every": 2}, [0.1, 0.3, 0.3]),
        ({"schedule": "step", "change": 2.0, "every": 1}, [0.2, 0.4, 0.6]),
    ],
    ids=str,
)
def test_the_weight_follows_its_schedule_up_to_its_bound(settings, expected):
    method = methods.build("margin_smoothing", classes=3, most=0.6, **settings)
    found = [method.after_epoch(val())["alpha"] for _ in range(3)]
    assert found == pytest.approx(expected)


def test_validation_probabilities_of_zero_raise():
    zero_probs = Predictions.from_probs(torch.eye(3), torch.arange(3))
    for name in ("cals_alm", "cals_hr"):
        with pytest.raises(ValueError, match="validation logits must be finite to have margins"):
            methods.build(name, classes=3).after_epoch(zero_probs)


def test_an_infinite_margin_is_cross_entropy_and_can_be_saved_in_a_run(tmp_path):
    batch = Batch(TOY, LABELS, torch.arange(4))
    method = methods.build("margin_smoothing", classes=3, margin=math.inf)
    expected = losses.cross_entropy(TOY, LABELS)
    torch.testing.assert_close(method.loss(nn.Identity(), batch), expected)
    splits = data.load("blobs", 0, limit=60)
    for _ in range(2):
        # The second time the run is complete: the saved settings equal the requested ones.
        model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[4])
        method = methods.build("margin_smoothing", classes=splits.classes, margin=math.inf)
        config = {"method.margin": math.inf}
        recipe = training.Recipe(epochs=1, batch=10)
        training.train(model, method, splits, recipe, folder=tmp_path, config=config)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["method.margin"] == "inf"


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [("phr", [1.500001, 0.500001, 0.500001]), ("p2", [4.500004, 0.312502, 0.500002])],
)
def test_one_update_on_the_toy_batch_gives_the_golden_multipliers(penalty, expected):
    method = methods.build("cals_alm", classes=3, margin=2.0, penalty=penalty)
    logged = method.after_epoch(val())
    torch.testing.assert_close(
        method.multipliers, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-6
    )
    torch.testing.assert_close(method.last, torch.tensor([1, 0.0125, -0.0375], dtype=torch.float64))
    assert logged["multiplier_max"] == pytest.approx(max(expected), abs=2e-6)


def test_updates_of_multipliers_computed_by_hand():
    # Small multipliers grow slowly with P3.
    method = methods.build("cals_alm", classes=3, margin=2.0, penalty="p3")
    method.after_epoch(val())
    assert method.multipliers.tolist() == pytest.approx([4e-6, 2e-6, 2e-6], rel=0.5)
    # All but the largest logit are 6 below it: h = (6 - 2) / 2 = 2, and PHR adds rho h.
    logits = torch.tensor([[6.0, 0.0, 0.0]], dtype=torch.float64).repeat(5, 1)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho=1.5)
    method.after_epoch(val(logits))
    assert method.multipliers.tolist() == pytest.approx([1e-6, 3 + 1e-6, 3 + 1e-6])
    # No constraint is active: multipliers fall to the smallest.
    method = methods.build("cals_alm", classes=3, margin=100.0)
    method.multipliers = torch.full((3,), 0.5, dtype=torch.float64)
    method.after_epoch(val())
    assert method.multipliers.tolist() == [1e-6, 1e-6, 1e-6]
    # Clamped before the mean: 5 and -1 of the second class become 2 and 1e-6, not min(2.5, 2).
    logits = torch.tensor([[6.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    method = methods.build("cals_alm", classes=2, margin=1.0, most=2.0)
    method.after_epoch(val(logits))
    assert method.multipliers[1].item() == pytest.approx((2 + 1e-6) / 2)


def test_rho_grows_where_the_constraint_does_not_fall_and_stays_within_its_bounds():
    # Two logits exactly a margin below the largest, h = 0 in every epoch: satisfied.
    logits = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho=1.5, rho_step=1)
    for _ in range(3):
        method.after_epoch(val(logits))
    assert method.rho.tolist() == [1.5] * 3
    method = methods.build("cals_alm", classes=3, margin=2.0, rho_step=1)
    method.after_epoch(val())
    assert method.rho.tolist() == [1, 1, 1]
    method.after_epoch(val())
    # The same means again: those above zero did not fall to nine tenths; the third is below zero.
    assert method.rho.tolist() == [1.2, 1.2, 1.0]
    for _ in range(20):
        method.after_epoch(val())
    assert method.rho.tolist() == [10, 10, 1]


def test_the_order_of_validation_does_not_matter_for_multipliers():
    one, other = (methods.build("cals_alm", classes=3, margin=2.0) for _ in range(2))
    one.after_epoch(val())
    other.after_epoch(val(TOY[[2, 0, 3, 1]]))
    torch.testing.assert_close(one.multipliers, other.multipliers, rtol=1e-14, atol=0)


def test_twelve_epochs_of_multipliers_equal_the_rules_written_as_a_loop():
    draw = np.random.default_rng(0)
    spreads = (3.0, 5.0, 2.0, 0.4, 0.3, 0.7, 4.0, 4.0, 3.9, 0.1, 6.0, 7.0)
    method = methods.build("cals_alm", classes=3, margin=2.0, rho_step=3, multiplier_step=2)
    multipliers, rho, last = np.full(3, 1e-6), np.ones(3), np.zeros(3)
    changes = set()
    for epoch, spread in enumerate(spreads, 1):
        z = spread * draw.normal((0.0, 1.0, 2.0), size=(7, 3))
        method.after_epoch(val(torch.from_numpy(z)))
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
