"""Margins, robust margins and the margin tail."""

import math

import numpy as np
import pytest
import torch
from dense_curvature import convolutional, unchanged
from torch import nn
from torch.testing import assert_close

from calibrant.curvature.margins import (
    logit_norm,
    margin_tail,
    margins,
    predicted_margins,
    robust_margins,
)

NORMS = pytest.mark.parametrize("norm", ["linf", "l2"])
WAYS = pytest.mark.parametrize("by", ["first_order", "attack"])
DUAL = {"linf": 1, "l2": 2}


def linear(n=300, d=6, k=4):
    model = nn.Linear(d, k, dtype=torch.float64)
    return model, torch.randn(n, d, dtype=torch.float64), torch.randint(k, (n,))


def exact_on_linear(model, x, y, epsilon, norm):
    """Robust margins of a linear network, and whether the runner-up stays the same."""
    logits, weight = model(x).detach(), model.weight.detach()
    gaps = (logits.gather(1, y[:, None]) - logits).scatter(1, y[:, None], torch.inf)
    norms = torch.linalg.vector_norm(weight[y][:, None] - weight[None], DUAL[norm], 2)
    robust = gaps - epsilon * norms
    return robust.amin(1), robust.argmin(1) == gaps.argmin(1)


class TestMargins:
    def test_by_hand_from_tensors_arrays_and_lists(self):
        logits = [[3.0, 1.0, 2.5], [3.0, 1.0, 2.5], [3.0, 1.0, 2.5]]
        for make in (torch.tensor, np.array, list):
            found = margins(make(logits), make([0, 1, 2]))
            assert found.dtype == torch.float64
            assert found.tolist() == [0.5, -2, -0.5]

    def test_of_pixels_leave_out_ignored_ones(self):
        logits, labels = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
        labels[0, 1:3] = 255
        found = margins(logits, labels, ignore_index=255)
        flat, own = logits.movedim(1, -1).reshape(-1, 3), labels.reshape(-1)
        assert len(found) == 30
        torch.testing.assert_close(found, margins(flat, own, ignore_index=255))
        torch.testing.assert_close(found, margins(flat[own != 255], own[own != 255]))

    def test_are_computed_in_float64_and_may_be_infinite(self):
        logits = torch.tensor([[1e-8, -1.0]])
        assert margins(logits, [0]).item() == float(logits[0, 0]) + 1.0 != 1.0
        logits = [[0.0, -math.inf], [-math.inf, 0.0]]
        assert margins(logits, [0, 0]).tolist() == [math.inf, -math.inf]

    def test_without_labels_are_those_of_the_predicted_class(self):
        logits = torch.randn(200, 5)
        first, second = logits.double().topk(2, 1).values.T
        assert torch.equal(predicted_margins(logits), first - second)
        assert torch.equal(predicted_margins(logits), margins(logits, logits.argmax(1)))
        labels = torch.randint(5, (200,))
        assert (predicted_margins(logits) >= margins(logits, labels)).all()
        assert predicted_margins([[2.0, 2.0, 1.0]]).tolist() == [0]
        assert len(predicted_margins(torch.randn(2, 3, 4, 5))) == 40


def test_the_tail_is_the_weighted_mean_of_exponentials():
    held = torch.randn(100, dtype=torch.float64)
    assert margin_tail(held) == pytest.approx(held.neg().exp().mean().item(), rel=1e-12)
    assert margin_tail(held.numpy()) == pytest.approx(margin_tail(held), rel=1e-12)
    assert margin_tail(held, log=True) == pytest.approx(math.log(margin_tail(held)), rel=1e-12)
    found = margin_tail([0.5, -1.0, 2.0], weights=[2, 0, 1])
    assert found == pytest.approx(margin_tail([0.5, 0.5, 2.0]), rel=1e-12)


def test_the_tail_has_a_log_where_it_overflows_or_underflows_and_margins_may_be_infinite():
    for margin in (-1000.0, 1000.0):
        assert margin_tail([margin] * 3, log=True) == pytest.approx(-margin, rel=1e-14)
        assert margin_tail([margin] * 3) == (math.inf if margin < 0 else 0.0)
    # One of two has half the weight; the other adds nothing.
    both = margin_tail([-1000.0, 1000.0], log=True)
    assert both == pytest.approx(1000 - math.log(2), rel=1e-14)
    assert margin_tail([0.5, -math.inf], weights=[1, 0]) == pytest.approx(math.exp(-0.5))
    assert margin_tail([math.inf, 0.0]) == 0.5
    assert margin_tail([math.inf, math.inf]) == 0
    assert margin_tail([-math.inf, 0.0], log=True) == math.inf


@pytest.mark.parametrize(("p", "expected"), [(1, 5.0), (2, 4.0), (math.inf, 3.5)])
def test_the_logit_norm_is_the_mean_of_the_norms(p, expected):
    # Norms of (3, -4) are 7, 5 and 4; those of (0, -3) all 3.
    assert logit_norm([[3.0, -4.0], [0.0, -3.0]], p=p) == expected
    assert logit_norm(np.array([[[3.0, 0.0], [-4.0, -3.0]]]), p=p) == expected


@NORMS
@WAYS
def test_robust_margins_of_linear_networks_lie_between_the_exact_and_the_clean_margin(norm, by):
    model, x, y = linear()
    clean = margins(model(x), y)
    for epsilon in (0, 0.2, 0.5):
        found = robust_margins(model, x, y, epsilon=epsilon, norm=norm, by=by)
        exact, stays = exact_on_linear(model, x, y, epsilon, norm)
        assert (found >= exact - 1e-9).all()
        assert (found <= clean + 1e-12).all()
        # Exact where the runner-up stays the same; elsewhere first order is not.
        assert_close(found[stays], exact[stays], rtol=1e-9, atol=1e-9)
        assert by == "attack" or (found > exact + 1e-6)[~stays].all()
        assert epsilon == 0 or 50 < stays.sum() < 300


def test_an_attack_is_limited_by_its_steps():
    model, x, y = linear()
    short = robust_margins(model, x, y, epsilon=1.0, by="attack", steps=3, step_size=0.1)
    exact, stays = exact_on_linear(model, x, y, 0.3, "linf")
    assert_close(short[stays], exact[stays], rtol=1e-9, atol=1e-9)


@NORMS
def test_robust_margins_respect_the_lipschitz_bound(norm):
    first, last = nn.Linear(6, 8, dtype=torch.float64), nn.Linear(8, 4, dtype=torch.float64)
    x, y = 3 * torch.randn(200, 6, dtype=torch.float64), torch.randint(4, (200,))
    network = nn.Sequential(first, nn.Tanh(), last)
    # Hidden units change by at most the dual norms of their weights, times those of the margin.
    change = torch.linalg.vector_norm(first.weight, DUAL[norm], 1)
    weighted = (last.weight[y][:, None] - last.weight[None]).abs() @ change
    lipschitz = weighted.amax(1).detach()
    clean = margins(network(x), y)
    for epsilon in (0.05, 0.5, 5.0):
        found = robust_margins(network, x, y, epsilon=epsilon, norm=norm, by="attack")
        linearised = robust_margins(network, x, y, epsilon=epsilon, norm=norm)
        for each in (found, linearised):
            assert (each >= clean - epsilon * lipschitz).all()
            assert (each <= clean).all()
        assert (found < clean).float().mean() > 0.95


def test_an_attack_returns_the_smallest_margin_of_all_steps():
    class Dip(nn.Module):
        """Margin 1 - 2 t exp(-t), smallest at t = 1 and nearly 1 far away."""

        def forward(self, x):
            t = x.abs().sum(1)
            return torch.stack([1 - 2 * t * torch.exp(-t), torch.zeros_like(t)], 1)

    x = torch.full((1, 1), 0.25, dtype=torch.float64)
    # The only step moves from 0.25 to 6.25, beyond the minimum.
    found = robust_margins(Dip(), x, [0], epsilon=6, by="attack", steps=1, step_size=6)
    assert found.item() == pytest.approx(1 - 0.5 * math.exp(-0.25))


def test_bounds_keep_inputs_in_their_range():
    # With two classes the runner-up is always the same, so attacks find the smallest margin.
    model, x, y = linear(k=2)
    x = x.sigmoid()
    inputs = []
    handle = model.register_forward_hook(lambda *called: inputs.append(called[1][0].detach()))
    top = torch.tensor([1.0, 0.9, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    x = torch.minimum(x, top)
    settings = {"epsilon": 0.4, "by": "attack", "chunk": 70}
    bounded = robust_margins(model, x, y, low=0, high=top, **settings)
    handle.remove()
    assert min(each.min() for each in inputs) == pytest.approx(0, abs=1e-12)
    assert all((each <= top + 1e-12).all() for each in inputs)
    free = robust_margins(model, x, y, **settings)
    assert (bounded >= free - 1e-12).all()
    assert (bounded > free + 1e-6).any()
    below = robust_margins(model, x, y, low=0, **settings)
    assert ((below <= bounded + 1e-12) & (below >= free - 1e-12)).all()


@WAYS
class TestBothEstimates:
    def test_do_not_change_the_network(self, by):
        network, x, y = convolutional(), torch.randn(7, 2, 4, 4), torch.randint(3, (7,))
        kept = x.clone()
        with unchanged(network), torch.no_grad():
            found = robust_margins(network, x, y, epsilon=0.1, by=by, steps=3)
        assert not found.requires_grad
        assert torch.equal(x, kept)
        # Dropout is off: a second call gives the same.
        again = robust_margins(network, x, y, epsilon=0.1, by=by, steps=3)
        assert_close(found, again, rtol=1e-5, atol=1e-6)

    def test_support_networks_with_in_place_operations(self, by):
        x, y = torch.randn(7, 3), torch.randint(3, (7,))
        kept, network = x.clone(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))
        found = robust_margins(network, x, y, epsilon=0.1, by=by)
        assert torch.equal(x, kept)
        assert (found < margins(network(x), y)).any()

    def test_do_not_depend_on_chunks_or_the_dtype_of_inputs(self, by):
        network, y = convolutional(), torch.randint(3, (7,))
        x = torch.randn(7, 2, 4, 4, dtype=torch.float64)
        settings = {"epsilon": 0.1, "by": by, "steps": 3, "norm": "l2"}
        whole = robust_margins(network, x, y, **settings)
        for chunk in (1, 3):
            assert_close(robust_margins(network, x, y, chunk=chunk, **settings), whole)
        network, x = network.float(), x.float()
        found = robust_margins(network, x.double().numpy(), y.numpy(), epsilon=0.1, by=by)
        assert_close(found, robust_margins(network, x, y, epsilon=0.1, by=by))

    def test_raise_for_token_ids(self, by):
        text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
        with pytest.raises(TypeError, match=r"int64 cannot be perturbed.*output of the embedding"):
            robust_margins(text, torch.randint(9, (5, 3)), [0] * 5, epsilon=0.1, by=by)


ODD = nn.Linear(2, 3)
X, Y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": -0.1}, "epsilon must be at least 0, got -0.1"),
        ({"epsilon": math.nan}, "epsilon must be at least 0"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"norm": "l1"}, r"norm must be one of \['linf', 'l2'\], got 'l1'"),
        ({"by": "luck"}, "by must be one of .*'attack'.*got 'luck'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"step_size": 0.0}, "step_size must be positive, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"low": 0}, "low and high bound an attack only"),
        ({"by": "attack", "high": [0.0, 1, 2]}, "high must be a number or broadcast to"),
        ({"labels": Y[:3]}, r"inputs are 4 examples, labels have shape \(3,\)"),
        ({"labels": Y + 3}, r"labels must lie in \[0, 2\], got 3"),
        ({"inputs": X[:0], "labels": Y[:0]}, "need at least 1 example"),
        ({"model": nn.Unflatten(1, (2, 1))}, r"must return \(4, k\) logits, got \(4, 2, 1\)"),
        ({"inputs": X * math.nan}, "not finite"),
    ],
)
def test_invalid_arguments_of_robust_margins_raise_in_one_line(changes, words):
    settings = {"model": ODD, "inputs": X, "labels": Y, "epsilon": 0.1} | changes
    with pytest.raises((ValueError, FloatingPointError), match=words) as error:
        robust_margins(settings.pop("model"), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: margins([[1.0, 2.0]], [2]), "label 2 at row 0 is out of range"),
        (lambda: margins([[1.0, 2.0]], [0, 1]), "1 rows, labels 2"),
        (lambda: margins([[1.0, 2.0]], [0, 1], ignore_index=1), "1 rows, labels 2"),
        (lambda: margins([[1.0, 2.0]], [255], ignore_index=255), "at least 1 example"),
        (lambda: margins([[math.nan, 2.0]], [0]), "NaN"),
        (lambda: predicted_margins([[math.nan, 2.0]]), "NaN"),
        (lambda: predicted_margins([1.0, 2.0]), "shape"),
        (lambda: logit_norm([[1.0, 2.0]], p=0.5), "p must be at least 1, got 0.5"),
        (lambda: margin_tail([]), "n at least 1"),
        (lambda: margin_tail([[1.0]]), r"must be \(n,\)"),
        (lambda: margin_tail([1.0, math.nan]), "NaN, the first at index 1"),
        (lambda: margin_tail([1.0], weights=[1, 2]), r"weights must be \(1,\)"),
    ],
)
def test_invalid_margins_and_tails_raise_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
