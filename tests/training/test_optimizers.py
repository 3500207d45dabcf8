"""Optimizers: which weights go where, single steps by hand, and states that resume bit for bit."""

import io
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from calibrant.models import build as build_model
from calibrant.training.optimizers import OPTIMIZERS, Sharpness, build, hidden_kernels

FORMATS = [torch.contiguous_format, torch.channels_last]


def network(memory_format=torch.contiguous_format, seed=0):
    model = build_model("resnet8", classes=3, shape=(3, 6, 6), width=0.25, seed=seed)
    return model.to(memory_format=memory_format)


def backward(model, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, 6, 6, generator=generator).to(next(model.parameters()).dtype)
    if model.conv.weight.is_contiguous(memory_format=torch.channels_last):
        x = x.to(memory_format=torch.channels_last)
    model.zero_grad()
    cross_entropy(model(x), torch.arange(8) % 3).backward()


def train(model, optimizer, steps):
    for step in steps:
        optimizer.set_rate(1 / (1 + step))
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def same_weights(first, second):
    return all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes_bit_for_bit_from_a_saved_state(name, memory_format):
    model = network(memory_format)
    optimizer = build(name, model, lr=0.02, weight_decay=0.01)
    train(model, optimizer, range(5))
    state, file = optimizer.state_dict(), io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": state}, file)
    train(model, optimizer, range(5, 10))
    # From the file, then twice from the state in memory, which stays as it was.
    file.seek(0)
    held = torch.load(file, weights_only=True)
    again = network(memory_format, seed=9)
    restored = build(name, again, lr=0.02, weight_decay=0.01)
    for own in (held["optimizer"], state, state):
        again.load_state_dict(held["model"])
        restored.load_state_dict(own)
        train(again, restored, range(5, 10))
        assert same_weights(again, model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_weights_with_two_axes_decay(name):
    model = network()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = build(name, model, lr=0.1, weight_decay=0.5, momentum=0.0)
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    for key, value in model.named_parameters():
        factor = 0.95 if value.ndim > 1 else 1.0
        torch.testing.assert_close(value.detach(), before[key] * factor)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_scales_the_base_rate_and_not_the_last_one(name):
    optimizer = build(name, network(), lr=0.4)
    for factor in (0.5, 0.5, 0.1, 1.0):
        optimizer.set_rate(factor)
        rates = {group["lr"] for part in optimizer.parts for group in part.param_groups}
        assert rates == {0.4 * factor}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_weights_stay_and_a_frozen_model_is_refused(name):
    model = network()
    model.conv.weight.requires_grad_(False)
    model.blocks[0].conv1.weight.requires_grad_(False)
    before = [model.conv.weight.clone(), model.blocks[0].conv1.weight.clone()]
    optimizer = build(name, model, lr=0.1)
    train(model, optimizer, range(2))
    optimizer.zero_grad()
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(model.conv.weight, before[0])
    assert torch.equal(model.blocks[0].conv1.weight, before[1])
    with pytest.raises(ValueError, match="weights that ask for a gradient, it has none"):
        build(name, model.requires_grad_(False), lr=0.1)


def test_gradient_descent_is_the_weights_minus_the_gradient():
    model = network()
    backward(model, 0)
    expected = [each.detach() - 0.3 * each.grad for each in model.parameters()]
    build("gd", model, lr=0.3, momentum=0.9, weight_decay=0.0).step()
    for value, target in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(value.detach(), target)


def test_sgd_with_nesterov_momentum_is_that_of_the_formula():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    optimizer = build("sgd", model, lr=0.1, momentum=0.5, weight_decay=0.0)
    for gradient in (1.0, 2.0):
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
    # Buffers 1 and 2.5; steps 0.1 * (1 + 0.5 * 1) and 0.1 * (2 + 0.5 * 2.5).
    assert model.weight.item() == pytest.approx(1 - 0.15 - 0.325)


class TestMuon:
    def test_takes_the_hidden_kernels_only(self):
        blocks = {f"blocks.{block}.conv{i}.weight" for block in range(3) for i in (1, 2)}
        texts = {"classes": 2, "shape": (4,), "vocabulary": 7, "hidden": 5}
        layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2))
        convolutions = {f"convolutions.{place}.weight" for place in range(3)}
        for model, expected in (
            (network(), blocks),
            (build_model("text_cnn", **texts), {"hidden.weight"} | convolutions),
            (build_model("bag_of_embeddings", **texts), {"hidden.weight"}),
            # Without a head: between the first and the last matrix.
            (layers, {"1.weight"}),
            (nn.Linear(4, 2), set()),
        ):
            chosen = {id(each) for each in hidden_kernels(model)}
            names = {key for key, value in model.named_parameters() if id(value) in chosen}
            assert names == expected, type(model)
        optimizer = build("muon", nn.Linear(4, 2), lr=0.1)
        assert [type(part).__name__ for part in optimizer.parts] == ["AdamW"]

    @pytest.mark.parametrize("memory_format", FORMATS)
    def test_steps_as_torchs_own_does_on_contiguous_matrices(self, memory_format):
        model = network(memory_format)
        copies = [
            nn.Parameter(each.detach().contiguous().flatten(1).clone())
            for each in hidden_kernels(model)
        ]
        settings = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}
        reference = torch.optim.Muon(copies, adjust_lr_fn="match_rms_adamw", **settings)
        optimizer = build("muon", model, **settings)
        for step in range(3):
            backward(model, step)
            for copy, each in zip(copies, hidden_kernels(model), strict=True):
                copy.grad = each.grad.contiguous().flatten(1).clone()
            reference.step()
            optimizer.step()
        for copy, each in zip(copies, hidden_kernels(model), strict=True):
            # Products in bfloat16 may differ in their last bit; a wrong step would by 0.02.
            torch.testing.assert_close(copy.detach(), each.detach().flatten(1), rtol=0, atol=5e-4)
            assert each.is_contiguous(memory_format=memory_format)

    def test_its_step_is_an_orthogonal_matrix_of_the_size_of_adamws(self):
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
        before = model[1].weight.detach().clone()
        for each in model.parameters():
            each.grad = torch.randn(8, 8)
        build("muon", model, lr=0.1, weight_decay=0.0).step()
        singular = torch.linalg.svdvals(before - model[1].weight.detach())
        # Five Newton-Schulz steps leave singular values near 1; the scale is 0.2 sqrt(8).
        scale = 0.1 * 0.2 * math.sqrt(8)
        assert 0.3 * scale < singular.min()
        assert singular.max() < 1.3 * scale

    def test_follows_a_model_that_changes_its_memory_format(self):
        moved, stayed = network(), network()
        optimizers = [build("muon", each, lr=0.02) for each in (moved, stayed)]
        for step in range(4):
            if step == 2:
                moved.to(memory_format=torch.channels_last)
            backward(stayed, step)
            moved.load_state_dict(stayed.state_dict())
            for ours, theirs in zip(moved.parameters(), stayed.parameters(), strict=True):
                ours.grad = theirs.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
            for ours, theirs in zip(moved.parameters(), stayed.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-4)


def test_the_state_of_another_optimizer_is_refused():
    model = network()
    state = build("muon", model, lr=0.1).state_dict()
    with pytest.raises(ValueError, match=r"must be of \['SGD'\], got \['KernelMuon', 'AdamW'\]"):
        build("sgd", model, lr=0.1).load_state_dict(state)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_sharpness_aware_weights_come_back_bit_for_bit(memory_format):
    model = network(memory_format)
    backward(model, 0)
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
    # A zero gradient moves nothing, nor do weights without one.
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first.grad = torch.zeros(2)
    Sharpness(0.1).ascend([first, second])
    assert torch.equal(first, torch.ones(2))
    assert torch.equal(second, torch.ones(2))
