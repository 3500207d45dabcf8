"""Attacks: exact on linear networks, within ball and bounds, and without a trace in the network."""

import copy

import pytest
import torch
from torch import nn

from calibrant.curvature.attacks import dual_norm, pgd
from calibrant.data import Scale
from calibrant.losses import cross_entropy
from calibrant.losses.margin import margin
from calibrant.methods.neighbourhood import Surroundings
from calibrant.model_modes import bare, evaluating

SCALE = Scale((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))


def linear(n: int = 40, d: int = 6, k: int = 4) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    model = nn.Linear(d, k, dtype=torch.float64)
    return model, torch.randn(n, d, dtype=torch.float64), torch.randint(k, (n,))


def attacked(model, x, y, *, low=None, high=None, **settings) -> torch.Tensor:
    def total(shift):
        return cross_entropy(model(x + shift), y).sum()

    return pgd(total, torch.zeros_like(x), low=low, high=high, **settings)


def test_the_margin_is_the_lead_of_the_label_over_the_best_of_the_others():
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert margin(logits, torch.tensor([0, 1, 2])).tolist() == [1, -2, -1]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("epsilon", "steps", "step_size"), [(0.3, 3, 0.05), (0.3, 9, 0.1)])
def test_no_shift_leaves_the_ball_or_goes_further_than_its_steps(norm, epsilon, steps, step_size):
    model, x, y = linear()
    settings = {"epsilon": epsilon, "steps": steps, "step_size": step_size, "norm": norm}
    shift = attacked(model, x, y, **settings)
    reach = min(epsilon, steps * step_size)
    length = shift.abs().amax(1) if norm == "linf" else shift.norm(dim=1)
    assert (length <= reach + 1e-12).all()
    # A linear network has gradients that hardly turn: the bound is nearly reached.
    assert length.mean() > 0.9 * reach


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_margins_of_attacked_inputs_lie_between_the_exact_robust_margin_and_the_clean_one(norm):
    model, x, y = linear(n=200)
    # With large weights the loss is the margin, or nearly so.
    model.weight.data *= 20
    epsilon = 0.2
    shift = attacked(model, x, y, epsilon=epsilon, steps=20, step_size=0.05, norm=norm)
    gaps = model.weight[y][:, None] - model.weight[None]
    logits = model(x)
    leads = logits.gather(1, y[:, None]) - logits
    exact = leads - epsilon * dual_norm(gaps.flatten(0, 1), norm).view_as(leads)
    exact = exact.scatter(1, y[:, None], torch.inf).amin(1)
    found = margin(model(x + shift), y)
    assert (found >= exact - 1e-12).all()
    assert (cross_entropy(model(x + shift), y) >= cross_entropy(logits, y)).all()
    lost = margin(logits, y) - exact
    assert ((found - exact) / lost).median() < 0.01


def test_the_dual_norm_is_what_a_linear_function_can_lose():
    slopes = torch.tensor([[[3.0, -4.0]], [[0.0, 0.0]]])
    assert dual_norm(slopes, "linf").tolist() == [7, 0]
    assert dual_norm(slopes, "l2").tolist() == [5, 0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("space", ["pixel", "normalized"])
def test_shifted_pixels_stay_within_their_range(norm, space):
    images = torch.randint(0, 256, (6, 3, 5, 5), dtype=torch.uint8)
    images[:2], images[2:4] = 0, 255
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 4))
    labels = torch.randint(4, (6,))
    near = Surroundings.of(model, SCALE(images), scale=SCALE, space=space)
    shift = pgd(
        lambda shift: cross_entropy(near.logits(model, shift), labels).sum(),
        near.zero,
        epsilon=0.5,
        steps=4,
        step_size=0.4,
        norm=norm,
        low=near.low,
        high=near.high,
    )
    mean, std = (torch.tensor(each)[:, None, None] for each in (SCALE.mean, SCALE.std))
    with near._shifted(shift) as inputs:
        pixels = inputs * std + mean
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6
    assert shift.abs().sum() > 1
    if space == "pixel":
        torch.testing.assert_close(pixels - images / 255, shift, rtol=0, atol=1e-6)


def test_black_pixels_may_stay_where_rounding_has_put_them():
    images = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    rounded = SCALE(images) - 1e-6
    near = Surroundings.of(nn.Identity(), rounded, scale=SCALE, space="pixel")
    assert (near.low <= 0).all()
    assert (near.high >= 0).all()


def test_a_quiet_pass_answers_as_the_network_does_and_leaves_nothing_behind():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 2))
    model[3].bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    near = Surroundings.of(model, torch.randn(7, 3, 5, 5), scale=None, space="pixel")
    shift = torch.randn(7, 3, 5, 5).requires_grad_()
    quiet = near.quiet_logits(model, shift, learns=False)
    quiet.sum().backward()
    assert shift.grad.abs().sum() > 0
    assert all(each.grad is None for each in model.parameters())
    assert [each.requires_grad for each in model.parameters()] == [True] * 5 + [False]
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    torch.testing.assert_close(near.logits(model, shift), quiet, rtol=1e-5, atol=1e-6)
    assert not torch.equal(before["1.running_mean"], model[1].running_mean)


def test_evaluation_mode_ends_where_each_part_was():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    model[0].eval()
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == [True, False, True]


def test_only_wrappers_are_opened():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

    class _FabricModule(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    own = Own()
    assert bare(own) is own
    assert bare(_FabricModule(own)) is own
