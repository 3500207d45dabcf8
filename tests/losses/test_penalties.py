"""Penalties of the augmented Lagrangian, and the loss made of them."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from calibrant.losses import PENALTIES, cals, cross_entropy, margin_constraint

every = pytest.mark.parametrize("name", PENALTIES)
GRID = torch.linspace(-6, 6, 2401, dtype=torch.float64)
MULTIPLIERS = [(0.7, 1.3), (1e-6, 1.0), (0.0, 2.0), (5.0, 0.1), (3.0, 10.0)]


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "h", "value", "derivative"),
    [
        ("phr", 0.5, 0.5125, 1.35),
        ("phr", -0.25, -0.134375, 0.375),
        ("phr", -1, -0.1884615, 0.0),
        ("p2", 0.5, 0.6127083, 1.82125),
        ("p2", -0.25, -0.1320755, 0.3987184),
        ("p2", -1, -0.3043478, 0.1323251),
        ("p3", 0.5, 0.5775, 1.61),
        ("p3", -0.25, -0.1320755, 0.3987184),
        ("p3", -1, -0.3043478, 0.1323251),
    ],
)
def test_values_and_derivatives_computed_by_hand(name, h, value, derivative):
    penalty = PENALTIES[name]
    assert_close(penalty.value(number(h), 0.7, 1.3).item(), value, rtol=0, atol=5e-8)
    assert_close(penalty.derivative(number(h), 0.7, 1.3).item(), derivative, rtol=0, atol=5e-8)


@every
@pytest.mark.parametrize(("multiplier", "rho"), MULTIPLIERS)
def test_a_penalty_is_convex_and_its_derivative_at_zero_is_the_multiplier(name, multiplier, rho):
    penalty = PENALTIES[name]
    zero = torch.zeros(1, dtype=torch.float64)
    assert penalty.value(zero, multiplier, rho) == 0
    assert_close(penalty.derivative(zero, multiplier, rho).item(), float(multiplier))
    h = GRID.clone().requires_grad_()
    value, derivative = (term(h, multiplier, rho) for term in (penalty.value, penalty.derivative))
    value.sum().backward()
    assert_close(h.grad, derivative)
    assert (derivative >= 0).all()
    assert (value.diff() >= -1e-12).all()
    assert (derivative.diff() >= -1e-12).all()
    for kink in (0.0, -multiplier / rho):
        around = number([kink - 1e-9, kink, kink + 1e-9])
        for term in (penalty.value, penalty.derivative):
            assert term(around, multiplier, rho).diff().abs().max() < 1e-6
    # Finite where 1 - rho h = 0, a pole of the hyperbola that is only for h < 0.
    h = number([1 / rho, 1e4, -1e4]).requires_grad_()
    penalty.value(h, multiplier, rho).sum().backward()
    assert h.grad.isfinite().all()


@pytest.mark.parametrize("name", ["p2", "p3"])
def test_the_hyperbolas_are_twice_differentiable_at_zero_and_bounded_below(name):
    step = 1e-6
    below, at, above = PENALTIES[name].derivative(number([-step, 0, step]), 0.7, 1.3)
    assert_close((above - at) / step, (at - below) / step, rtol=1e-4, atol=0)
    far = number(-1e8)
    assert_close(PENALTIES[name].value(far, 0.7, 1.3).item(), -0.7 / 1.3)
    assert PENALTIES[name].derivative(far, 0.7, 1.3).item() < 1e-15


@every
def test_the_loss_has_a_gradient_in_multipliers_and_rho(name):
    logits = 2 * torch.randn(5, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1])
    multipliers = number([0.3, 0.7, 1.1]).requires_grad_()
    rho = number([1.0, 2.0, 3.0]).requires_grad_()
    assert gradcheck(
        lambda m, r: cals(logits, labels, margin=1, multipliers=m, rho=r, penalty=name).sum(),
        (multipliers, rho),
    )


@every
@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_equals_a_loop_over_examples_and_classes(name, normalize):
    logits = 3 * torch.randn(5, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1])
    multipliers, rho = number([0.3, 0.7, 1.1]), number([1.0, 2.0, 3.0])
    value = cals(
        logits,
        labels,
        margin=2,
        multipliers=multipliers,
        rho=rho,
        penalty=name,
        normalize=normalize,
    )
    for i in range(5):
        expected = cross_entropy(logits, labels)[i].item()
        for j in range(3):
            h = max(logits[i]).item() - logits[i, j].item() - 2
            h, m, r = h / 2 if normalize else h, multipliers[j].item(), rho[j].item()
            if name == "phr":
                term = (max(0, m + r * h) ** 2 - m**2) / (2 * r)
            elif h < 0:
                term = m * h / (1 - r * h)
            else:
                term = m * h + m * r * h**2 + (r**2 * h**3 / 6 if name == "p2" else 0)
            expected += term / 3
        assert_close(value[i].item(), expected)


def test_the_largest_logit_satisfies_the_constraint_and_ties_share_the_gradient():
    logits = torch.tensor([[2.0, 2.0, -1.0]], requires_grad=True)
    h = margin_constraint(logits, margin=4)
    assert h[0, :2].tolist() == [-1, -1]
    h[0, 2].backward()
    assert_close(logits.grad, torch.tensor([[0.125, 0.125, -0.25]]))


def test_a_margin_above_all_gaps_leaves_only_a_constant():
    logits, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    logits.requires_grad_()
    far = cals(logits, labels, margin=1e9, multipliers=0.5, rho=2.0)
    assert_close(far, cross_entropy(logits, labels) - 0.5**2 / 4, rtol=0, atol=1e-8)
    (gradient,) = torch.autograd.grad(far.sum(), logits)
    (plain,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    assert_close(gradient, plain, rtol=0, atol=1e-8)
