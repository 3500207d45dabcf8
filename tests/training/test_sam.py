"""Sharpness-aware minimisation."""

import pytest
import torch
from torch import nn

from calibrant.models import build
from calibrant.training.sam import Sharpness


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_weights_come_back_bit_for_bit(memory_format):
    model = build("resnet8", classes=3, shape=(3, 6, 6)).to(memory_format=memory_format)
    model(torch.randn(4, 3, 6, 6)).square().sum().backward()
    before = [each.detach().clone() for each in model.parameters()]
    sharpness = Sharpness(0.5)
    for _ in range(2):
        sharpness.ascend(model.parameters())
        assert all(
            not torch.equal(each, old)
            for each, old in zip(model.parameters(), before, strict=True)
            if each.grad.abs().sum() > 0
        )
        sharpness.restore()
        for each, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(each, old)
            assert each.stride() == old.stride()


def test_all_weights_together_move_by_rho_along_the_gradient():
    model = nn.Linear(3, 2).double()
    model(torch.randn(5, 3, dtype=torch.float64)).square().sum().backward()
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
    Sharpness(0.3).ascend(model.parameters())
    after = torch.cat([each.detach().flatten() for each in model.parameters()])
    torch.testing.assert_close(after - before, 0.3 * gradient / gradient.norm())


def test_a_zero_gradient_and_weights_without_one_move_nothing():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first.grad = torch.zeros(2)
    sharpness = Sharpness(0.1)
    sharpness.ascend([first, second])
    assert torch.equal(first, torch.ones(2))
    assert torch.equal(second, torch.ones(2))
    sharpness.restore()


def test_moving_twice_without_going_back_is_refused():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    sharpness = Sharpness(0.1)
    sharpness.ascend([weight])
    with pytest.raises(ValueError, match="put back by restore"):
        sharpness.ascend([weight])


@pytest.mark.parametrize("rho", [0.0, -1.0, float("nan"), float("inf")])
def test_a_radius_that_is_not_positive_and_finite_is_refused(rho):
    with pytest.raises(ValueError, match="rho must be"):
        Sharpness(rho)
