"""AdaFocal: gammas follow the gap of their bin, change sign near zero, and stay in bounds."""

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


def test_it_begins_as_focal_loss():
    method = methods.build("adafocal", classes=2, gamma=2.0)
    p = torch.tensor([0.1, 0.6, 0.97], dtype=torch.float64)
    torch.testing.assert_close(loss_of(method, p.tolist()), -((1 - p) ** 2) * p.log())


def test_a_bin_that_is_too_sure_gets_a_larger_gamma_and_its_examples_that_gamma():
    method = methods.build("adafocal", classes=2, bins=2, rate=2.0)
    # Lower bin: confidence 0.6, all right; upper bin: 0.9, half right.
    row = method.after_epoch(predictions([0.6, 0.6, 0.9, 0.9], [1, 1, 0, 1]))
    assert row["gap"] == pytest.approx([-0.4, 0.4])
    assert row["gamma"] == pytest.approx([math.exp(-0.8), math.exp(0.8)])
    low, high = math.exp(-0.8), math.exp(0.8)
    # The edge belongs to the lower bin.
    by_hand = [-((1 - p) ** g) * math.log(p) for p, g in ((0.2, low), (0.6, low), (0.61, high))]
    assert loss_of(method, [0.2, 0.6, 0.61]).tolist() == pytest.approx(by_hand)


def test_a_gamma_near_zero_becomes_negative_and_raises_confidence_and_comes_back():
    method = methods.build("adafocal", classes=2, bins=1, gamma=0.25)
    method.after_epoch(predictions([0.6, 0.6], [1, 1]))
    assert method.gamma.tolist() == [-0.2]
    p = torch.tensor([0.3, 0.8], dtype=torch.float64)
    torch.testing.assert_close(loss_of(method, p.tolist()), -((1 + p) ** 0.2) * p.log())
    # Still not sure enough: more negative; then too sure: closer to zero, and over it.
    method.after_epoch(predictions([0.6, 0.6], [1, 1]))
    assert method.gamma.item() == pytest.approx(-0.2 * math.exp(0.4))
    for _ in range(2):
        method.after_epoch(predictions([0.9, 0.9], [0, 1]))
    assert method.gamma.tolist() == [0.2]


def test_the_bin_is_that_of_the_logits_of_inference_and_the_loss_that_of_adjusted_ones():
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


def test_more_bins_than_examples_leave_the_gammas_of_empty_bins_alone():
    method = methods.build("adafocal", classes=2, bins=5)
    row = method.after_epoch(predictions([0.6, 0.9], [0, 0]))
    assert sorted(row["gamma"]) == pytest.approx([1, 1, 1, math.exp(0.6), math.exp(0.9)])
    assert loss_of(method, [0.05, 0.99]).isfinite().all()


def test_no_gradient_reaches_the_loss_through_the_choice_of_the_bin():
    method = methods.build("adafocal", classes=3, bins=4)
    torch.manual_seed(0)
    logits = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    method.loss(nn.Identity(), Batch(logits, labels, torch.arange(6))).sum().backward()
    fixed = logits.detach().clone().requires_grad_()
    losses.focal(fixed, labels, gamma=1.0).sum().backward()
    torch.testing.assert_close(logits.grad, fixed.grad)


def test_a_state_is_taken_up_and_wrong_settings_and_states_are_refused():
    method = methods.build("adafocal", classes=2, bins=2)
    method.after_epoch(predictions([0.6, 0.9], [0, 1]))
    other = methods.build("adafocal", classes=2, bins=2)
    other.load_state_dict(method.state_dict())
    assert torch.equal(loss_of(other, [0.2, 0.7]), loss_of(method, [0.2, 0.7]))
    with pytest.raises(ValueError, match="must be for 3 bins"):
        methods.build("adafocal", classes=2, bins=3).load_state_dict(method.state_dict())
    with pytest.raises(ValueError, match="not a state of AdaFocal"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match=r"edges must be for 2 bins, \(1,\); got \(4,\)"):
        other.load_state_dict({**method.state_dict(), "edges": torch.zeros(4)})
    with pytest.raises(ValueError, match="must be of 3 classes, as the method is; got 2"):
        methods.build("adafocal", classes=3).after_epoch(predictions([0.6, 0.9], [0, 1]))
    with pytest.raises(ValueError, match="least must be finite and at most"):
        methods.build("adafocal", classes=2, least=0.5)
