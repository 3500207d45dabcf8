"""Eigenvalues of known matrices, and of networks compared with dense ones."""

import numpy as np
import pytest
import torch
from dense_curvature import drawn, hessian, image_network, mlp
from torch import nn

from calibrant.curvature.spectrum import (
    Density,
    density,
    lanczos,
    largest_eigenvalues,
    spectral_density,
    top_eigenvalues,
    top_eigenvectors,
)
from calibrant.curvature.weights import random_direction, random_signs
from calibrant.losses import cross_entropy


def known(values) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(values).double()
    generator = torch.Generator().manual_seed(0)
    turned, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator).double())
    return turned @ torch.diag(values) @ turned.T


def top(matrix: torch.Tensor, k: int, tolerance: float = 1e-10, **options):
    start = options.pop("start", random_direction(len(matrix), 0))
    return largest_eigenvalues(
        lambda v: matrix @ v, len(matrix), k=k, tolerance=tolerance, start=start, **options
    )


@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (2, 2), (15, 15), (20, 1), (20, 15), (21, 1), (21, 15), (60, 2)]
)
def test_the_largest_eigenvalues_and_vectors_of_a_known_matrix(size, k):
    matrix = known(torch.linspace(-3, 2, size) if size > 1 else [2.0])
    values, vectors = top(matrix, k)
    assert torch.allclose(values, torch.linalg.eigvalsh(matrix).flip(0)[:k])
    assert torch.allclose(matrix @ vectors.T, vectors.T * values, atol=1e-8)
    assert torch.allclose(vectors @ vectors.T, torch.eye(k).double(), atol=1e-8)


def test_negative_eigenvalues_and_matrices_of_low_rank():
    matrix = known([-50.0, *torch.linspace(-1, 1, 38), 3.0])
    assert top(matrix, 1)[0].tolist() == pytest.approx([3.0])
    assert top(known(torch.linspace(-9, -1, 40)), 1)[0].tolist() == pytest.approx([-1.0])
    for rank in (0, 1, 2):
        values, vectors = top(known([*[2.0] * rank, *[0.0] * (40 - rank)]), 2)
        assert values.tolist() == pytest.approx([2.0] * rank + [0.0] * (2 - rank), abs=1e-12)
        assert torch.allclose(vectors @ vectors.T, torch.eye(2).double(), atol=1e-8)


def test_the_error_is_within_the_tolerance_and_a_good_start_saves_products():
    generator = torch.Generator().manual_seed(0)
    matrix = known(torch.rand(300, generator=generator) ** 2)
    exact = float(torch.linalg.eigvalsh(matrix)[-1])
    used = []

    def product(vector):
        used.append(1)
        return matrix @ vector

    options = {"k": 1, "tolerance": 1e-3}
    values, vectors = largest_eigenvalues(product, 300, start=random_direction(300, 0), **options)
    assert abs(float(values) - exact) <= 1e-3 * exact
    cold, matrix = len(used), matrix + 1e-3 * known(torch.linspace(-1, 1, 300))
    largest_eigenvalues(product, 300, start=vectors[0], **options)
    assert len(used) < 2 * cold


SPREAD = known(torch.linspace(0.999, 1, 200))


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (SPREAD, {"restarts": 1}, "0 of 1 eigenvalues converged to 1e-10 in 1 restarts"),
        (SPREAD, {"k": 201}, r"k must lie in \[1, 200\], the number of weights, got 201"),
        (SPREAD, {"start": torch.zeros(200).double()}, "start must be"),
        (SPREAD, {"tolerance": 0.0}, "tolerance must be positive"),
        (
            torch.diag(torch.arange(40) % 2).double(),
            {"start": torch.eye(40)[0].double()},
            "change start",
        ),
    ],
)
def test_failures_raise_in_one_line(matrix, options, message):
    with pytest.raises((ValueError, FloatingPointError), match=message) as error:
        top(matrix, **{"k": 1} | options)
    assert "\n" not in str(error.value)


def test_eigenvalues_of_a_network_are_those_of_its_dense_hessian():
    model, pair = image_network(), drawn((1, 5, 5), n=5)
    exact, turned = torch.linalg.eigh(hessian(model, pair))
    values, vectors = top_eigenvectors(model, cross_entropy, pair, k=3, tolerance=1e-9)
    assert torch.allclose(values, exact.flip(0)[:3])
    assert float((vectors[0] @ turned[:, -1]).abs()) == pytest.approx(1)
    rough = top_eigenvalues(model, cross_entropy, pair)
    assert torch.allclose(rough, exact[-1:], rtol=1e-3)
    assert torch.allclose(rough, top_eigenvalues(model, cross_entropy, pair), rtol=1e-9)
    warm = top_eigenvalues(model, cross_entropy, pair, start=vectors[0])
    assert torch.allclose(warm, exact[-1:], rtol=1e-3)
    # The Hessian of half the squared logits is the second moment of the inputs.
    model, (x, _) = nn.Linear(4, 1, bias=False).double(), drawn((4,))
    found = top_eigenvalues(
        model, lambda z, y: z.square().sum(1) / 2, (x, torch.zeros(7).long()), k=4
    )
    assert torch.allclose(found, torch.linalg.eigvalsh(x.T @ x / 7).flip(0))


def test_the_density_integrates_to_one_and_its_mean_is_the_trace_over_the_size():
    model, pair = mlp(), drawn((4,))
    matrix = hessian(model, pair)
    spread = spectral_density(model, cross_entropy, pair, draws=6, seed=2)
    assert float(spread.weights.sum()) == pytest.approx(1)
    # With random signs, the mean is Hutchinson's estimate of the trace, over the size.
    traces = [float(each @ matrix @ each) for each in random_signs(len(matrix), 6, 2)]
    mean = float(spread.weights @ spread.values)
    assert mean == pytest.approx(sum(traces) / 6 / len(matrix))
    assert float(spread.values.max()) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]))
    one = Density(torch.ones(1).double(), torch.ones(1).double())
    smoothed = one.at(torch.tensor([1.0, 1.5]).double(), 0.5)
    assert smoothed.tolist() == pytest.approx([0.797885, 0.483941], rel=1e-5)
    grid = torch.linspace(-3, 3, 4001).double()
    assert float(torch.trapezoid(spread.at(grid, 0.05), grid)) == pytest.approx(1)


def test_moments_of_a_diagonal_matrix_are_exact_up_to_twice_the_steps():
    # Sign vectors give the diagonal exactly, so one draw is enough.
    values = torch.linspace(-1, 2, 50).double()
    spread = density(lambda v: values * v, 50, steps=4, draws=1, seed=0)
    for power in range(8):
        assert float(spread.weights @ spread.values**power) == pytest.approx(
            float((values**power).mean())
        )
    assert len(spread.values) == 4


def test_lanczos_has_no_copies_and_stops_when_the_krylov_space_is_exhausted():
    values = torch.cat([torch.linspace(0, 1, 300).double(), torch.tensor([100.0]).double()])
    start = torch.ones(301).double()
    nodes, weights = lanczos(lambda v: values * v, start, steps=60)
    assert int((nodes > 50).sum()) == 1
    assert float(weights[nodes > 50]) == pytest.approx(1 / 301)
    values = torch.arange(40).double() % 3
    nodes, weights = lanczos(lambda v: values * v, torch.ones(40).double(), steps=30)
    assert np.allclose(nodes, [0, 1, 2], atol=1e-12)
    assert np.allclose(weights, [14 / 40, 13 / 40, 13 / 40])
    assert len(lanczos(lambda v: 0 * v, torch.ones(5).double(), steps=30)[0]) == 1
