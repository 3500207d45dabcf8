"""Batch sharpness and SAM sharpness, compared with loops and closed forms."""

import copy
import math

import pytest
import torch
from dense_curvature import IGNORED, drawn, hessian, mlp
from torch import nn

from calibrant.curvature.sharpness import batch_sharpness, sam_sharpness
from calibrant.losses import cross_entropy


def half_square(logits, labels):
    return logits.square().sum(1) / 2


def test_batch_sharpness_is_the_mean_of_a_loop_over_batches():
    model, (x, y) = mlp(), drawn((4,), n=12)
    generator = torch.Generator().manual_seed(3)
    ratios = []
    for _ in range(5):
        index = torch.randperm(12, generator=generator)[:4]
        pair = x[index], y[index]
        loss = cross_entropy(model(pair[0]), pair[1]).mean()
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        g = torch.cat([each.reshape(-1) for each in gradients])
        ratios.append(float(g @ hessian(model, pair) @ g / (g @ g)))
    found = batch_sharpness(model, cross_entropy, (x, y), batch=4, batches=5, seed=3)
    assert float(found) == pytest.approx(sum(ratios) / 5)
    assert found.error == pytest.approx(float(torch.tensor(ratios).std()) / math.sqrt(5))
    parts = [(x[:5], y[:5]), (x[5:], y[5:])]
    again = batch_sharpness(model, cross_entropy, parts, batch=4, batches=5, seed=3)
    assert float(again) == pytest.approx(float(found))
    # Ignored examples are not drawn.
    marked = torch.cat([x, x[:3]]), torch.cat([y, torch.full((3,), IGNORED)])
    options = {"batch": 4, "batches": 5, "seed": 3, "ignore_index": IGNORED}
    assert float(batch_sharpness(model, cross_entropy, marked, **options)) == pytest.approx(
        float(found)
    )
    # A batch of the whole dataset has no error.
    whole = batch_sharpness(model, cross_entropy, (x, y), batch=100)
    assert whole.error == 0
    again = batch_sharpness(model, cross_entropy, (x, y), batch=12, seed=1)
    assert float(again) == pytest.approx(float(whole))


@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_one_step_on_a_quadratic_equals_its_formula(rho):
    model, (x, _) = nn.Linear(4, 1, bias=False).double(), drawn((4,))
    matrix, weights = x.T @ x / 7, model.weight.detach()[0]
    g = matrix @ weights
    increase = rho * g.norm() + rho**2 / 2 * (g @ matrix @ g) / (g @ g)
    found = sam_sharpness(model, half_square, (x, torch.zeros(7).long()), rho=rho)
    assert found == pytest.approx(float(increase))


def test_more_steps_approach_the_maximum_in_the_ball():
    model, (x, _) = nn.Linear(4, 1, bias=False).double(), drawn((4,))
    data, matrix = (x, torch.zeros(7).long()), x.T @ x / 7
    found = [sam_sharpness(model, half_square, data, rho=2.0, steps=steps) for steps in (1, 2, 60)]
    assert found == sorted(found)
    angles = torch.randn(20000, 4, generator=torch.Generator().manual_seed(0)).double()
    weights = model.weight.detach()
    moved = weights + 2 * angles / angles.norm(dim=1, keepdim=True)
    values = (moved @ matrix * moved).sum(1) / 2
    best = float(values.max()) - float(weights @ matrix @ weights.T) / 2
    assert best <= found[-1] <= best * 1.02


def test_the_weights_do_not_change_and_without_an_increase_it_is_zero():
    model, pair = mlp(), drawn((4,))
    before = copy.deepcopy(model.state_dict())
    assert sam_sharpness(model, cross_entropy, pair, steps=3) > 0
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert sam_sharpness(model, lambda z, y: z.detach().sum(1), pair) == 0
    # A step across a maximum.
    model, data = nn.Linear(4, 1, bias=False).double(), (drawn((4,))[0], torch.zeros(7).long())
    assert sam_sharpness(model, lambda z, y: -half_square(z, y), data, rho=10.0) == 0


@pytest.mark.parametrize(
    ("measure", "options", "message"),
    [
        (sam_sharpness, {"rho": 0.0}, "rho must be positive"),
        (sam_sharpness, {"steps": 0}, "steps must be at least 1"),
        (batch_sharpness, {"batch": 0}, "batch must be positive"),
        (batch_sharpness, {"batches": 1}, "batches must be at least 2"),
        (batch_sharpness, {"loss": lambda z, y: 0 * z.sum(1)}, "gradient of a batch is zero"),
    ],
)
def test_invalid_options_and_zero_gradients_raise(measure, options, message):
    arguments = {"model": mlp(), "loss": cross_entropy, "data": drawn((4,))} | options
    with pytest.raises((ValueError, FloatingPointError), match=message):
        measure(**arguments)
