"""AdaFocal: gammas follow the gap of their bin, change sign near zero, stay within bounds."""

import math

import pytest
import torch
from torch import nn

from calibrant import losses, methods
from calibrant.data import Batch
from calibrant.predictions import Predictions


def predictions(confidence: list[float], correct: list[int]) -> Predictions:
    """Two classes; class 0 is predicted with the given probability."""
    top = torch.tensor(confidence, dtype=torch.float64)
    probs = torch.stack([top, 1 - top], 1)
    return Predictions.from_probs(probs, 1 - torch.tensor(correct))


def loss_of(method, probs: list[float]) -> torch.Tensor:
    p = torch.tensor(probs, dtype=torch.float64)
    logits = torch.stack([p.log(), (1 - p).log()], 1)
    return method.loss(
        nn.Identity(), Batch(logits, torch.zeros(len(p)).long(), torch.arange(len(p)))
    )


def test_it_starts_as_focal_loss_and_overconfident_bins_get_a_larger_gamma():
    method = methods.build("adafocal", classes=2, gamma=2.0)
    p = torch.tensor([0.1, 0.6, 0.97], dtype=torch.float64)
    torch.testing.assert_close(loss_of(method, p.tolist()), -((1 - p) ** 2) * p.log())
    method = methods.build("adafocal", classes=2, bins=2, rate=2.0)
    # Lower bin: confidence 0.6, all correct; upper bin: 0.9, half correct.
    record = method.after_epoch(predictions([0.6, 0.6, 0.9, 0.9], [1, 1, 0, 1]))
    assert record["gap"] == pytest.approx([-0.4, 0.4])
    assert record["gamma"] == pytest.approx([math.exp(-0.8), math.exp(0.8)])
    low, high = math.exp(-0.8), math.exp(0.8)
    # The edge belongs to the lower bin.
    by_hand = [-((1 - p) ** g) * math.log(p) for p, g in ((0.2, low), (0.6, low), (0.61, high))]
    assert loss_of(method, [0.2, 0.6, 0.61]).tolist() == pytest.approx(by_hand)


def test_a_gamma_near_zero_changes_its_sign_to_inverse_focal_and_back():
    method = methods.build("adafocal", classes=2, bins=1, gamma=0.25)
    method.after_epoch(predictions([0.6, 0.6], [1, 1]))
    assert method.gamma.tolist() == [-0.2]
    p = torch.tensor([0.3, 0.8], dtype=torch.float64)
    torch.testing.assert_close(loss_of(method, p.tolist()), -((1 + p) ** 0.2) * p.log())
    # Still under-confident: more negative; then over-confident: closer to zero, and across it.
    method.after_epoch(predictions([0.6, 0.6], [1, 1]))
    assert method.gamma.item() == pytest.approx(-0.2 * math.exp(0.4))
    for _ in range(2):
        method.after_epoch(predictions([0.9, 0.9], [0, 1]))
    assert method.gamma.tolist() == [0.2]


def test_bins_use_the_logits_of_inference_and_the_loss_the_adjusted_ones():
    method = methods.build("adafocal", classes=2, bins=2, adjust=1.0)
    method.counts = torch.tensor([90, 10])
    method.gamma, method.edges = torch.tensor([1.0, 3.0]).double(), torch.tensor([0.5]).double()
    # 0.4 is below the edge; after the adjustment it would be 6 / 7, above it.
    p = 0.4 * 9 / (0.4 * 9 + 0.6)
    assert loss_of(method, [0.4]).item() == pytest.approx(-(1 - p) * math.log(p))


def test_gammas_stay_within_their_bounds():
    method = methods.build("adafocal", classes=2, bins=3, rate=50.0, most=7.0)
    for _ in range(5):
        method.after_epoch(predictions([0.6, 0.8, 0.95], [0, 0, 0]))
    assert method.gamma.tolist() == [7.0] * 3
    method = methods.build("adafocal", classes=2, bins=3, rate=50.0)
    for _ in range(5):
        method.after_epoch(predictions([0.6, 0.8, 0.95], [1, 1, 1]))
    assert method.gamma.tolist() == [-2.0] * 3
    # With more bins than examples, empty bins keep their gamma.
    method = methods.build("adafocal", classes=2, bins=5)
    record = method.after_epoch(predictions([0.6, 0.9], [0, 0]))
    assert sorted(record["gamma"]) == pytest.approx([1, 1, 1, math.exp(0.6), math.exp(0.9)])
    assert loss_of(method, [0.05, 0.99]).isfinite().all()


def test_the_choice_of_the_bin_has_no_gradient():
    method = methods.build("adafocal", classes=3, bins=4)
    torch.manual_seed(0)
    logits = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    method.loss(nn.Identity(), Batch(logits, labels, torch.arange(6))).sum().backward()
    fixed = logits.detach().clone().requires_grad_()
    losses.focal(fixed, labels, gamma=1.0).sum().backward()
    torch.testing.assert_close(logits.grad, fixed.grad)
