"""Label smoothing learnt on held-out data: three forms, their bounds, side effects."""

from dataclasses import replace
from functools import partial

import meta_batches
import pytest
import torch
from meta_batches import K
from torch import nn

from calibrant import Predictions, losses, methods
from calibrant.data import Batch

D = 5
FORMS = ("scalar", "class", "matrix")


batch_of = partial(meta_batches.batch_of, width=D)


def head() -> nn.Linear:
    torch.manual_seed(2)
    made = nn.Linear(D, K, dtype=torch.float64)
    made.weight.data *= 6
    return made


def made(**settings) -> methods.MetaSmoothing:
    return methods.build("meta_smoothing", classes=K, **settings)


def set_to(method, value: float) -> None:
    with torch.no_grad():
        method.smoothing.fill_(value)


def learnt(method, model: nn.Module, steps: int = 1, lr: float = 0.5):
    for _ in range(steps):
        method.before_step(model, batch_of(20, 0), batch_of(60, 1), lr)
        method.loss(model, batch_of(20, 0))
    return method


@pytest.mark.parametrize("form", FORMS)
def test_it_starts_as_cross_entropy_and_soft_labels_sum_to_one(form):
    method, model, batch = made(form=form), head(), batch_of(20, 0)
    expected = losses.cross_entropy(model(batch.inputs), batch.labels)
    torch.testing.assert_close(method.loss(model, batch), expected)
    set_to(method, 0.2)
    torch.testing.assert_close(method.targets(batch.labels).sum(1), torch.ones(20).double())


def test_the_soft_labels_of_each_form():
    model, batch = head(), batch_of(20, 0)
    one = made()
    set_to(one, 0.2)
    expected = losses.label_smoothing(model(batch.inputs), batch.labels, alpha=0.2)
    torch.testing.assert_close(one.loss(model, batch), expected)
    matrix = made(form="matrix")
    set_to(matrix, 0.2)
    labels = torch.tensor([1])
    torch.testing.assert_close(
        matrix.targets(labels).detach(), torch.tensor([[0.2, 0.6, 0.2]]).double()
    )
    each = made(form="class")
    with torch.no_grad():
        each.smoothing.copy_(torch.tensor([0.0, 0.3, 0.0]))
    torch.testing.assert_close(
        each.targets(labels).detach(), torch.tensor([[0.1, 0.8, 0.1]]).double()
    )


@pytest.mark.parametrize("form", FORMS)
def test_both_derivatives_agree_and_are_those_of_finite_differences(form):
    model, batch, meta = head(), batch_of(20, 0), batch_of(60, 1)
    grads = []
    for derivative in ("closed_form", "double_backward"):
        method = made(form=form, derivative=derivative, objective="sece+ce", bandwidth=0.1)
        set_to(method, 0.1)
        grads.append(learnt(method, model).smoothing.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-8)
    set_to(method, 0.1)

    def outcome() -> float:
        moved = head()
        log_p = torch.log_softmax(moved(batch.inputs), 1)
        mean = -(method.targets(batch.labels).detach() * log_p).sum(1).mean()
        gradients = torch.autograd.grad(mean, list(moved.parameters()))
        with torch.no_grad():
            for each, gradient in zip(moved.parameters(), gradients, strict=True):
                each -= 0.5 * gradient
            return method.held_out_objective(moved(meta.inputs), meta.labels).item()

    at = grads[0].abs().argmax()
    values = []
    for sign in (1, -1):
        set_to(method, 0.1)
        with torch.no_grad():
            method.smoothing.view(-1)[at] += sign * 1e-5
        values.append(outcome())
    difference = (values[0] - values[1]) / 2e-5
    assert grads[0].view(-1)[at].item() == pytest.approx(difference, rel=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_an_overconfident_model_gets_more_smoothing_within_its_bounds(form):
    # Correct on every training example and over-confident on the held-out ones.
    method, model = made(form=form, meta_lr=0.05), head()
    model.weight.data = 3 * torch.eye(K, D).double()
    before = {key: each.clone() for key, each in model.state_dict().items()}
    batch = batch_of(20, 0)
    known = replace(batch, labels=batch.inputs[:, :K].argmax(1))
    for _ in range(30):
        method.before_step(model, known, batch_of(60, 1), 0.5)
        method.loss(model, known)
    record = method.after_epoch(Predictions(torch.randn(4, K), torch.zeros(4, dtype=torch.int64)))
    assert 0.05 < record["smoothing_max"] <= 0.5 + 1e-12
    assert (method.smoothing >= 0).all()
    assert record["meta_gradient_norm"] > 0
    assert len(record.get("smoothing", [])) == (0 if form == "scalar" else K)
    assert all(torch.equal(each, before[key]) for key, each in model.state_dict().items())
    # A label always keeps at least half of its weight.
    assert method.targets(torch.arange(K)).diagonal().min() >= 0.5 - 1e-12


def test_the_lookahead_step_does_not_depend_on_the_size_of_the_batch():
    once = batch_of(20, 0)
    twice = Batch(once.inputs.repeat(2, 1), once.labels.repeat(2), torch.arange(40))
    grads = []
    for batch in (once, twice):
        method = made()
        method.before_step(head(), batch, batch_of(60, 1), 0.5)
        method.loss(head(), batch)
        grads.append(method.smoothing.grad)
    torch.testing.assert_close(*grads)
