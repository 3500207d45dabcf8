"""Attacks: exact on linear networks, within ball and bounds, without side effects."""

import pytest
import torch
from torch import nn

from calibrant.curvature.attacks import dual_norm, pgd
from calibrant.data import Scale
from calibrant.losses import cross_entropy
from calibrant.losses.margin import margin
from calibrant.methods.neighbourhood import Neighbourhood
from calibrant.model_modes import bare, evaluating

SCALE = Scale((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))


def linear(n: int = 40, d: int = 6, k: int = 4) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    model = nn.Linear(d, k, dtype=torch.float64)
    return model, torch.randn(n, d, dtype=torch.float64), torch.randint(k, (n,))


def attacked(model, x, y, *, low=None, high=None, **settings) -> torch.Tensor:
    def total(delta):
        return cross_entropy(model(x + delta), y).sum()

    return pgd(total, torch.zeros_like(x), low=low, high=high, **settings)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("epsilon", "steps", "step_size"), [(0.3, 3, 0.05), (0.3, 9, 0.1)])
def test_perturbations_stay_within_the_ball_and_the_reach_of_steps(norm, epsilon, steps, step_size):
    model, x, y = linear()
    settings = {"epsilon": epsilon, "steps": steps, "step_size": step_size, "norm": norm}
    delta = attacked(model, x, y, **settings)
    reach = min(epsilon, steps * step_size)
    length = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
    assert (length <= reach + 1e-12).all()
    # Gradients of a linear network hardly change direction: the bound is nearly reached.
    assert length.mean() > 0.9 * reach


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_margins_of_attacked_inputs_lie_between_the_exact_robust_margin_and_the_clean_one(norm):
    model, x, y = linear(n=200)
    # With large weights the loss is nearly the margin.
    model.weight.data *= 20
    epsilon = 0.2
    delta = attacked(model, x, y, epsilon=epsilon, steps=20, step_size=0.05, norm=norm)
    gaps = model.weight[y][:, None] - model.weight[None]
    logits = model(x)
    margins = logits.gather(1, y[:, None]) - logits
    exact = margins - epsilon * dual_norm(gaps.flatten(0, 1), norm).view_as(margins)
    exact = exact.scatter(1, y[:, None], torch.inf).amin(1)
    found = margin(model(x + delta), y)
    assert (found >= exact - 1e-12).all()
    assert (cross_entropy(model(x + delta), y) >= cross_entropy(logits, y)).all()
    decrease = margin(logits, y) - exact
    assert ((found - exact) / decrease).median() < 0.01


def test_margins_and_dual_norms_by_hand():
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert margin(logits, torch.tensor([0, 1, 2])).tolist() == [1, -2, -1]
    gradients = torch.tensor([[[3.0, -4.0]], [[0.0, 0.0]]])
    assert dual_norm(gradients, "linf").tolist() == [7, 0]
    assert dual_norm(gradients, "l2").tolist() == [5, 0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("space", ["pixel", "normalized"])
def test_perturbed_pixels_stay_within_their_range(norm, space):
    images = torch.randint(0, 256, (6, 3, 5, 5), dtype=torch.uint8)
    images[:2], images[2:4] = 0, 255
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 4))
    labels = torch.randint(4, (6,))
    near = Neighbourhood.of(model, SCALE(images), scale=SCALE, space=space)
    delta = pgd(
        lambda delta: cross_entropy(near.logits(model, delta), labels).sum(),
        near.zero,
        epsilon=0.5,
        steps=4,
        step_size=0.4,
        norm=norm,
        low=near.low,
        high=near.high,
    )
    mean, std = (torch.tensor(each)[:, None, None] for each in (SCALE.mean, SCALE.std))
    with near._perturbed(delta) as inputs:
        pixels = inputs * std + mean
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6
    assert delta.abs().sum() > 1
    if space == "pixel":
        torch.testing.assert_close(pixels - images / 255, delta, rtol=0, atol=1e-6)
    # The zero perturbation is allowed where rounding puts black slightly below zero.
    rounded = SCALE(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)) - 1e-6
    near = Neighbourhood.of(nn.Identity(), rounded, scale=SCALE, space="pixel")
    assert (near.low <= 0).all()
    assert (near.high >= 0).all()


def test_evaluation_mode_is_restored_and_only_known_wrappers_are_removed():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    model[0].eval()
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == [True, False, True]

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
