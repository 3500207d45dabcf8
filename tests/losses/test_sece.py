"""SECE as a loss: limits, loops, forms; the contract of all losses is tested elsewhere."""

import math

import pytest
import torch
from torch.testing import assert_close

from calibrant.losses import sece
from calibrant.losses.sece import smooth_gap


def batch(n=30, k=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits, torch.randint(k, (n,), generator=generator)


@pytest.mark.parametrize("form", ["points", "grid"])
def test_repeated_examples_do_not_change_it(form):
    logits, labels = batch()
    value = sece(logits, labels, form=form)
    assert_close(sece(logits.repeat(2, 1), labels.repeat(2), form=form), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bandwidth", [1e-9, 1e-30, 1e-300])
def test_narrow_kernels_use_each_example_alone(dtype, bandwidth):
    logits, labels = batch()
    logits = logits.to(dtype).requires_grad_()
    confidence, predicted = logits.softmax(1).max(1)
    own = ((predicted == labels).to(dtype) - confidence).abs().mean()
    value = sece(logits, labels, bandwidth=bandwidth)
    assert_close(value, own)
    (gradient,) = torch.autograd.grad(value, logits)
    assert_close(gradient, torch.autograd.grad(own, logits)[0])


def test_the_grid_is_the_integral_by_the_trapezoidal_rule():
    # Confidences near 1: the ends of the grid have weight.
    logits, labels = batch(6)
    logits = 8 * logits
    confidence, predicted = logits.softmax(1).max(1)
    at = torch.linspace(0, 1, 257, dtype=torch.float64)
    kernel = torch.exp(-0.5 * ((at[:, None] - confidence) / 0.25) ** 2)
    density = kernel.sum(1)
    near = (kernel * (predicted == labels)).sum(1) / density
    error = torch.trapezoid(density * (near - at).abs(), at) / torch.trapezoid(density, at)
    assert_close(sece(logits, labels, bandwidth=0.25, form="grid"), error, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["points", "leave_one_out"])
def test_it_equals_a_loop_over_pairs_of_examples(form, weighted):
    logits, labels = batch(9)
    confidence, predicted = logits.softmax(1).max(1)
    r, c = confidence.tolist(), (predicted == labels).tolist()
    counts = [1 + i % 3 for i in range(9)] if weighted else [1] * 9
    total = 0.0
    for i in range(9):
        often = [n - (form == "leave_one_out") * (i == j) for j, n in enumerate(counts)]
        near = [n * math.exp(-(((r[i] - v) / 0.1) ** 2) / 2) for n, v in zip(often, r, strict=True)]
        accuracy = sum(w * hit for w, hit in zip(near, c, strict=True)) / sum(near)
        total += counts[i] * abs(accuracy - r[i])
    weights = torch.tensor(counts, dtype=torch.float64) if weighted else None
    hits = (predicted == labels).double()
    found = smooth_gap(confidence, hits, bandwidth=0.1, form=form, weights=weights)
    assert_close(found.item(), total / sum(counts))


def test_leave_one_out_of_one_example_has_no_error_and_no_gradient():
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = sece(logits, torch.tensor([0]), form="leave_one_out")
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


def test_minimising_it_corrects_an_overconfident_scale():
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(500, 3, generator=generator)
    labels = torch.multinomial(true_logits.softmax(1), 1, generator=generator)[:, 0]
    log_scale = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_scale], lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        sece(true_logits * log_scale.exp(), labels, bandwidth=0.05).backward()
        optimizer.step()
    assert abs(log_scale.item()) < 0.2
