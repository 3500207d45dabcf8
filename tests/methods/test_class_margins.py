"""Margin smoothing with schedules, and the rule that updates a penalty weight per class."""

import json
import math

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
