"""Products with second derivatives, compared with dense matrices."""

from functools import partial

import pytest
import torch
from dense_curvature import (
    CASES,
    DENSE,
    IGNORED,
    drawn,
    hessian,
    image_network,
    mask_network,
    mlp,
    pixels,
)
from torch import nn
from torch.nn import functional

from calibrant.curvature import problem
from calibrant.curvature.products import Operator, gradient, operator
from calibrant.losses import brier, cross_entropy, focal, label_smoothing, mmce

LOSSES = {
    "focal": partial(focal, gamma=1.5),
    "label_smoothing": partial(label_smoothing, alpha=0.2),
    "brier": brier,
    "mean": functional.cross_entropy,
    "sum_of_terms": lambda z, y: cross_entropy(z, y) + 0.1 * z.pow(4).sum(1),
    "times_three": lambda z, y: 3 * cross_entropy(z, y),
    "batch_statistic": mmce,
}
MATRICES = ["hessian", "gauss_newton"]


def columns(curvature: Operator) -> torch.Tensor:
    """The matrix from its products, symmetric or not."""
    return torch.stack([curvature.product(row) for row in torch.eye(curvature.size).double()], 1)


def close(found: torch.Tensor, expected: torch.Tensor, to: float = 1e-10) -> bool:
    assert expected.abs().max() > 1e-3
    return bool((found - expected).abs().max() < to)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("case", CASES)
def test_products_are_those_of_the_dense_matrix_for_every_kind_of_network(case, matrix):
    make, data = CASES[case]
    model, pair = make(), data()
    curvature = operator(model, cross_entropy, pair, matrix=matrix, ignore_index=IGNORED)
    vectors = torch.randn(9, curvature.size, dtype=torch.float64)
    found = torch.stack([curvature.product(each) for each in vectors])
    assert close(found, vectors @ DENSE[matrix](model, pair).T)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_products_are_those_of_the_dense_matrix_for_every_loss(loss, matrix):
    model, pair = mlp(), drawn((4,))
    found = columns(operator(model, loss, pair, matrix=matrix))
    assert close(found, DENSE[matrix](model, pair, loss))


@pytest.mark.parametrize("matrix", MATRICES)
def test_batches_of_different_sizes_give_what_one_batch_gives(matrix):
    model, (x, y) = mlp(), drawn((4,))
    batches = [(x[:1], y[:1]), (x[1:5], y[1:5]), (x[5:5], y[5:5]), (x[5:], y[5:])]
    split = operator(model, cross_entropy, batches, matrix=matrix)
    assert close(columns(split), DENSE[matrix](model, (x, y)))
    gradients = torch.autograd.grad(cross_entropy(model(x), y).mean(), [*model.parameters()])
    expected = torch.cat([each.reshape(-1) for each in gradients])
    assert close(gradient(model, cross_entropy, batches), expected)


def test_a_batch_of_masks_has_the_weight_of_its_valid_pixels():
    model, (x, y) = mask_network(), pixels()
    y[0, 1:] = IGNORED
    y[1] = IGNORED
    batches = [(x[:1], y[:1]), (x[1:2], y[1:2]), (x[2:], y[2:])]
    curvature = operator(model, cross_entropy, batches, ignore_index=IGNORED)
    vector = torch.randn(curvature.size, dtype=torch.float64)
    assert close(curvature.product(vector), hessian(model, (x, y)) @ vector)


@pytest.mark.parametrize("matrix", MATRICES)
def test_small_chunks_and_rebuilt_graphs_change_nothing(monkeypatch, matrix):
    monkeypatch.setattr(problem, "CHUNK_BYTES", 1 << 14)
    model, pair = image_network(), drawn((1, 5, 5), n=5)
    vector = torch.randn(342, dtype=torch.float64)
    expected = DENSE[matrix](model, pair) @ vector
    kept = operator(model, cross_entropy, pair, matrix=matrix)
    assert kept.kept is not None
    assert 1 < len(kept.kept) < 5
    assert close(kept.product(vector), expected)
    limited = operator(model, cross_entropy, pair, matrix=matrix, keep=1 << 14)
    assert limited.kept is None
    assert close(limited.product(vector), expected)


def test_a_batch_statistic_is_averaged_over_whole_batches(monkeypatch):
    monkeypatch.setattr(problem, "CHUNK_BYTES", 1)
    model, (x, y) = mlp(), drawn((4,))
    parts = [(x[:3], y[:3]), (x[3:], y[3:])]
    expected = (3 * hessian(model, parts[0], mmce) + 4 * hessian(model, parts[1], mmce)) / 7
    assert close(columns(operator(model, mmce, parts)), expected)
    assert not close(columns(operator(model, mmce, (x, y))), expected)


def test_gauss_newton_is_the_hessian_of_a_linear_model_and_has_no_negative_eigenvalue():
    model, pair = nn.Linear(4, 3).double(), drawn((4,))
    expected = hessian(model, pair)
    assert close(columns(operator(model, cross_entropy, pair, matrix="gauss_newton")), expected)
    for seed in range(5):
        model, pair = mlp(seed), drawn((4,), seed=seed)
        matrices = [operator(model, cross_entropy, pair, matrix=matrix) for matrix in MATRICES]
        of_hessian, of_gauss_newton = (torch.linalg.eigvalsh(m.dense()) for m in matrices)
        assert of_gauss_newton.min() > -1e-14
        assert of_hessian.min() < -1e-4


@pytest.mark.parametrize("matrix", MATRICES)
def test_a_loss_without_curvature_gives_zero(matrix):
    model, pair = nn.Linear(4, 3).double(), drawn((4,))
    for flat in (lambda z, y: z[:, 0], lambda z, y: torch.zeros(len(z)).double()):
        curvature = operator(model, flat, pair, matrix=matrix)
        assert not curvature.product(torch.ones(15).double()).any()


@pytest.mark.parametrize("named", [["head"], ["layers.0.bias", "head.weight"]])
def test_named_weights_give_their_block(named):
    model, pair = mlp(), drawn((4,))
    chosen = {
        name: any(f"{name}.".startswith(f"{each}.") for each in named)
        for name, _ in model.named_parameters()
    }
    marks = torch.cat([torch.full((w.numel(),), chosen[n]) for n, w in model.named_parameters()])
    block = hessian(model, pair)[marks][:, marks]
    assert close(columns(operator(model, cross_entropy, pair, parameters=named)), block)
    # The same block where the other weights are frozen.
    for name, each in model.named_parameters():
        each.requires_grad_(chosen[name])
    assert close(columns(operator(model, cross_entropy, pair)), block)


def test_the_matrix_does_not_change_when_the_weights_do():
    model, pair = mlp(), drawn((4,))
    expected = hessian(model, pair)
    kept = operator(model, cross_entropy, pair)
    anew = operator(model, cross_entropy, pair, keep=0)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    assert close(columns(kept), expected)
    assert close(columns(anew), expected)


@pytest.mark.parametrize("matrix", MATRICES)
def test_float32_is_close_to_float64(matrix):
    model, (x, y) = image_network(), drawn((1, 5, 5), n=5)
    vector = torch.randn(342, dtype=torch.float64)
    exact = operator(model, cross_entropy, (x, y), matrix=matrix).product(vector)
    found = operator(model.float(), cross_entropy, (x, y), matrix=matrix).product(vector)
    assert found.dtype == torch.float64
    assert 0 < (found - exact).abs().max() < 1e-5 * exact.abs().max()
