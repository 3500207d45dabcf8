"""Eigenvalues: of known matrices, and of networks against the dense ones."""

import numpy as np
import pytest
import torch
from dense_curvature import drawn, hessian, image_network, mlp
from torch import nn

from calibrant.curvature.eigen import largest
from calibrant.curvature.spectrum import (
    Density,
    density,
    lanczos,
    spectral_density,
    top_eigenvalues,
    top_eigenvectors,
)
from calibrant.curvature.weights import signs, unit
from calibrant.losses import cross_entropy


def known(values) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(values).double()
    generator = torch.Generator().manual_seed(0)
    turned, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator).double())
    return turned @ torch.diag(values) @ turned.T


def top(matrix: torch.Tensor, k: int, tolerance: float = 1e-10, **options):
    start = options.pop("start", unit(len(matrix), 0))
    return largest(
        lambda v: matrix @ v, len(matrix), k=k, tolerance=tolerance, start=start, **options
    )


@pytest.mark.parametrize("size", [1, 2, 15, 20, 21, 60])
@pytest.mark.parametrize("k", [1, 2, 15])
def test_the_largest_of_a_known_matrix_are_found_with_their_vectors(size, k):
    if k > size:
        return
    matrix = known(torch.linspace(-3, 2, size) if size > 1 else [2.0])
    values, vectors = top(matrix, k)
    assert torch.allclose(values, torch.linalg.eigvalsh(matrix).flip(0)[:k])
    assert torch.allclose(matrix @ vectors.T, vectors.T * values, atol=1e-8)
    assert torch.allclose(vectors @ vectors.T, torch.eye(k).double(), atol=1e-8)


def test_a_larger_negative_eigenvalue_is_not_the_largest():
    matrix = known([-50.0, *torch.linspace(-1, 1, 38), 3.0])
    assert top(matrix, 1)[0].tolist() == pytest.approx([3.0])
    assert top(known(torch.linspace(-9, -1, 40)), 1)[0].tolist() == pytest.approx([-1.0])


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_matrices_of_little_or_no_rank_have_zeros(rank):
    matrix = known([*[2.0] * rank, *[0.0] * (40 - rank)])
    values, vectors = top(matrix, 2)
    assert values.tolist() == pytest.approx([2.0] * rank + [0.0] * (2 - rank), abs=1e-12)
    assert torch.allclose(vectors @ vectors.T, torch.eye(2).double(), atol=1e-8)


def test_the_error_is_within_the_tolerance_and_a_vector_from_nearby_saves_products():
    generator = torch.Generator().manual_seed(0)
    matrix = known(torch.rand(300, generator=generator) ** 2)
    exact = float(torch.linalg.eigvalsh(matrix)[-1])
    used = []

    def product(vector):
        used.append(1)
        return matrix @ vector

    values, vectors = largest(product, 300, k=1, tolerance=1e-3, start=unit(300, 0))
    assert abs(float(values) - exact) <= 1e-3 * exact
    cold, moved = len(used), matrix + 1e-3 * known(torch.linspace(-1, 1, 300))
    used.clear()
    matrix = moved
    largest(product, 300, k=1, tolerance=1e-3, start=vectors[0])
    assert len(used) < cold


def test_what_cannot_be_found_is_one_line():
    matrix = known(torch.linspace(0.999, 1, 200))
    with pytest.raises(FloatingPointError, match="0 of 1 eigenvalues converged to 1e-10 in 1 res"):
        top(matrix, 1, restarts=1)
    with pytest.raises(ValueError, match=r"k must lie in \[1, 40\], the number of weights, got 41"):
        top(known(torch.ones(40)), 41)
    with pytest.raises(ValueError, match="start must be"):
        top(matrix, 1, start=torch.zeros(200).double())
    with pytest.raises(ValueError, match="tolerance must be positive"):
        top(matrix, 1, tolerance=0.0)
    with pytest.raises(FloatingPointError, match="change start"):
        top(torch.diag(torch.arange(40) % 2).double(), 1, start=torch.eye(40)[0].double())


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


def test_the_sharpness_of_a_quadratic_is_its_curvature():
    # The loss is the mean of half the squared logits: its Hessian is that of the inputs.
    model, (x, _) = nn.Linear(4, 1, bias=False).double(), drawn((4,))
    found = top_eigenvalues(
        model, lambda z, y: z.square().sum(1) / 2, (x, torch.zeros(7).long()), k=4
    )
    assert torch.allclose(found, torch.linalg.eigvalsh(x.T @ x / 7).flip(0))


def test_the_density_integrates_to_one_and_its_mean_is_the_estimated_trace_over_the_size():
    model, pair = mlp(), drawn((4,))
    matrix = hessian(model, pair)
    spread = spectral_density(model, cross_entropy, pair, draws=6, seed=2)
    assert float(spread.weights.sum()) == pytest.approx(1)
    # With random signs, the mean is Hutchinson's estimate of the trace, over the size.
    traces = [float(each @ matrix @ each) for each in signs(len(matrix), 6, 2)]
    mean = float(spread.weights @ spread.values)
    assert mean == pytest.approx(sum(traces) / 6 / len(matrix))
    assert float(spread.values.max()) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]))
    grid = torch.linspace(-3, 3, 4001).double()
    assert float(torch.trapezoid(spread.at(grid, 0.05), grid)) == pytest.approx(1)


def test_moments_of_a_diagonal_matrix_are_exact_up_to_twice_the_steps():
    # The first is the trace over the size. Signs see the diagonal exactly, so one draw is enough.
    values = torch.linspace(-1, 2, 50).double()
    spread = density(lambda v: values * v, 50, steps=4, draws=1, seed=0)
    for power in range(8):
        assert float(spread.weights @ spread.values**power) == pytest.approx(
            float((values**power).mean())
        )
    assert len(spread.values) == 4


def test_found_eigenvalues_do_not_come_back_as_copies():
    values = torch.cat([torch.linspace(0, 1, 300).double(), torch.tensor([100.0]).double()])
    start = torch.ones(301).double()
    places, weights = lanczos(lambda v: values * v, start, steps=60)
    assert int((places > 50).sum()) == 1
    assert float(weights[places > 50]) == pytest.approx(1 / 301)


def test_lanczos_stops_where_nothing_new_is_left():
    values = torch.arange(40).double() % 3
    places, weights = lanczos(lambda v: values * v, torch.ones(40).double(), steps=30)
    assert np.allclose(places, [0, 1, 2], atol=1e-12)
    assert np.allclose(weights, [14 / 40, 13 / 40, 13 / 40])
    assert len(lanczos(lambda v: 0 * v, torch.ones(5).double(), steps=30)[0]) == 1


def test_a_smoothed_density_has_the_width_that_was_asked_for():
    spread = Density(torch.tensor([1.0]).double(), torch.tensor([1.0]).double())
    at = spread.at(torch.tensor([1.0, 1.5]).double(), 0.5)
    assert at.tolist() == pytest.approx([0.797885, 0.483941], rel=1e-5)
