"""Focal loss and its variants: derivatives, weights, thresholds."""

import math

import pytest
import torch
from loss_batches import batch
from scipy.optimize import minimize_scalar
from scipy.special import lambertw
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.testing import assert_close

from calibrant.losses import balancing_gamma, cross_entropy, dual_focal, flsd, focal, inverse_focal

FAMILY = {"focal": focal, "dual_focal": dual_focal, "inverse_focal": inverse_focal}
family = pytest.mark.parametrize("loss", FAMILY.values(), ids=FAMILY)


def binary(p):
    """Logits of two classes of which the first, the label, has probability p."""
    p = torch.as_tensor(p, dtype=torch.float64).reshape(-1)
    return torch.stack([p.log(), torch.log1p(-p)], 1), torch.zeros(len(p), dtype=torch.long)


@family
def test_first_and_second_derivatives_in_logits_and_gamma(loss):
    logits, labels = batch(3, 3)
    gamma = torch.tensor([0.4, 1.0, 3.3], dtype=torch.float64, requires_grad=True)
    logits.requires_grad_()
    weights = torch.rand(3, dtype=torch.float64)
    inputs = (logits, gamma)
    assert gradcheck(lambda z, g: (loss(z, labels, gamma=g) * weights).sum(), inputs)
    assert gradgradcheck(lambda z, g: (loss(z, labels, gamma=g) * weights).sum(), inputs)
    single = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert_close(loss(logits, labels, gamma=single), loss(logits, labels, gamma=1.5))
    assert gradcheck(lambda g: loss(logits, labels, gamma=g).sum(), single)


@family
def test_derivatives_stay_finite_with_gammas_of_zero_and_below_one(loss):
    for gap in (0, 1e-30, 30, 200, 1e4):
        labels = torch.tensor([0, 1, 2] * 4)
        logits = (gap * torch.eye(3).repeat_interleave(4, 0)).requires_grad_()
        gamma = torch.tensor([0, 0.01, 0.5, 7] * 3, requires_grad=True)
        value = loss(logits, labels, gamma=gamma)
        first = grad(value.sum(), (logits, gamma), create_graph=True)
        second = grad(sum((part**2).sum() for part in first), (logits, gamma))
        for tensor in (value, *first, *second):
            assert tensor.isfinite().all(), gap


@family
def test_a_gamma_per_example_acts_on_that_example_alone(loss):
    logits, labels = batch(3, 3)
    gamma = torch.tensor([0, 0.5, 4])
    together = loss(logits, labels, gamma=gamma)
    assert together.dtype == torch.float64
    for i in range(3):
        alone = loss(logits[i : i + 1], labels[i : i + 1], gamma=gamma[i].item())
        assert_close(together[i : i + 1], alone)


def test_focal_is_accurate_where_the_label_has_probability_near_one():
    # 1 - p = exp(-14), which 1 - p.exp() has to one digit in float32.
    logits = torch.tensor([[14.0, 0.0]], requires_grad=True)
    focal(logits, torch.tensor([0]), gamma=0.5).backward()
    # u(p) (1 - p) with u = (1 - p)^gamma (1 + gamma r), r -> 1 as p -> 1.
    assert_close(logits.grad[0, 1].item(), 1.5 * math.exp(-21), rtol=0.05, atol=0)


def test_focal_falls_as_gamma_grows():
    logits, labels = batch(50, 3)
    values = torch.stack([focal(logits, labels, gamma=g) for g in (0, 0.1, 1, 3, 10)])
    assert (values.diff(dim=0) < 0).all()
    gamma = torch.ones(50, dtype=torch.float64, requires_grad=True)
    focal(logits, labels, gamma=gamma).sum().backward()
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    assert_close(gamma.grad, -(1 - p) * torch.log1p(-p) * p.log())


def test_a_detached_weight_keeps_the_value_and_only_scales_the_gradient():
    logits, labels = batch(6, 3)
    logits.requires_grad_()
    value = focal(logits, labels, gamma=2.0, detach_weight=True)
    assert_close(value, focal(logits, labels, gamma=2.0))
    (gradient,) = grad(value.sum(), logits)
    (plain,) = grad(cross_entropy(logits, labels).sum(), logits)
    p = logits.detach().softmax(1).gather(1, labels[:, None])
    assert_close(gradient, (1 - p) ** 2 * plain)


def test_dual_focal_equals_a_loop():
    logits, labels = batch(40, 5)
    for z, y, value in zip(
        logits, labels, dual_focal(logits, labels, gamma=2.5).tolist(), strict=True
    ):
        p = z.softmax(0).tolist()
        lower = max((other for other in p if other < p[y]), default=0.0)
        assert_close(value, -((1 - p[y] + lower) ** 2.5) * math.log(p[y]))


def test_dual_focal_lies_between_focal_and_cross_entropy_and_is_focal_for_the_least_class():
    logits, _ = batch(20, 3)
    labels = logits.argmin(1)
    assert_close(dual_focal(logits, labels, gamma=3), focal(logits, labels, gamma=3))
    tied, label = torch.zeros(1, 3), torch.tensor([1])
    assert_close(dual_focal(tied, label, gamma=3), focal(tied, label, gamma=3))
    logits, labels = batch(200, 5)
    value = dual_focal(logits, labels, gamma=3)
    assert (value >= focal(logits, labels, gamma=3)).all()
    assert (value <= cross_entropy(logits, labels)).all()


def test_inverse_focal_by_hand_and_its_limit_of_monotonicity():
    # p = 1/2: -(3/2)^2 log(1/2).
    logits, labels = binary(0.5)
    assert_close(inverse_focal(logits, labels).item(), 2.25 * math.log(2))
    found = minimize_scalar(lambda p: (1 + p) / (-p * math.log(p)), bounds=(0.01, 0.9))
    limit = 1 / lambertw(1 / math.e).real
    assert_close(found.fun, limit, rtol=1e-6, atol=0)
    logits, labels = binary(torch.linspace(0.01, 0.99, 500))
    assert (inverse_focal(logits, labels, gamma=limit - 0.01).diff() < 0).all()
    assert (inverse_focal(logits, labels, gamma=limit + 0.1).diff() > 0).any()


@pytest.mark.parametrize("threshold", [1e-6, 0.01, 0.1, 0.2, 0.37, 0.49, 0.4999])
def test_at_its_threshold_focal_has_the_gradient_of_cross_entropy(threshold):
    assert_close(balancing_gamma(0.5), 0.0, rtol=0, atol=5e-5)
    gamma = balancing_gamma(threshold)
    assert gamma > 0
    for p, sign in ((threshold * 0.9, 1), (threshold, 0), (threshold * 1.1, -1)):
        logits, labels = binary(p)
        logits.requires_grad_()
        (gradient,) = grad(focal(logits, labels, gamma=gamma).sum(), logits)
        (plain,) = grad(cross_entropy(logits, labels).sum(), logits)
        ratio = (gradient / plain)[0, 0].item()
        assert abs(ratio - 1) < 1e-8 if sign == 0 else (ratio - 1) * sign > 0


def test_flsd_chooses_gamma_by_the_probability_of_the_label():
    logits, labels = binary([0.05, 0.1999, 0.2, 0.22, 0.25, 0.4, 0.9])
    expected = {
        "steps": [5, 5, 3, 3, 3, 3, 3],
        "lambert": [balancing_gamma(0.2)] * 2 + [balancing_gamma(0.25)] * 5,
    }
    for rule, gammas in expected.items():
        gamma = torch.tensor(gammas, dtype=torch.float64)
        value = flsd(logits, labels, rule=rule)
        assert_close(value, focal(logits, labels, gamma=gamma))
    three = [balancing_gamma(t) for t in (0.1, 0.3, 0.5)]
    gamma = torch.tensor([three[i] for i in (0, 1, 1, 1, 1, 2, 2)], dtype=torch.float64)
    value = flsd(logits, labels, rule="lambert", thresholds=(0.1, 0.3, 0.5))
    assert_close(value, focal(logits, labels, gamma=gamma))
    logits, labels = batch(30, 3)
    logits.requires_grad_()
    p = logits.detach().softmax(1).gather(1, labels[:, None])[:, 0]
    gamma = torch.where(p < 0.2, 5.0, 3.0)
    (gradient,) = grad(flsd(logits, labels).sum(), logits)
    (expected,) = grad(focal(logits, labels, gamma=gamma).sum(), logits)
    assert_close(gradient, expected)


def test_dual_focal_has_the_next_lower_probabilities_of_the_golden_batch():
    logits = torch.tensor(
        [[4, 1, -2], [0.5, 2.5, 1], [-6, 3, 8], [0.2, 0.1, 0]], dtype=torch.float64
    )
    labels = torch.tensor([0, 2, 2, 1])
    entropy = cross_entropy(logits, labels)
    weight = dual_focal(logits, labels, gamma=1) / entropy
    lower = weight - 1 + (-entropy).exp()
    expected = [0.0473141552, 0.0996236481, 0.0066928454, 0.3006096054]
    assert_close(lower.tolist(), expected, rtol=0, atol=1e-9)
