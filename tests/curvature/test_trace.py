"""Traces: exact where possible, unbiased, with correct standard errors."""

import math
from dataclasses import astuple

import pytest
import torch
from dense_curvature import DENSE, drawn, hessian, image_network, mlp

from calibrant.curvature.trace import Estimate, average, estimate_trace, trace
from calibrant.losses import cross_entropy


def decaying(size: int = 120) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    turned, _ = torch.linalg.qr(torch.randn(size, size, generator=generator).double())
    return turned @ torch.diag(1 / torch.arange(1, size + 1).double() ** 1.5) @ turned.T


def of(matrix: torch.Tensor, method: str, products: int, seed: int = 0) -> Estimate:
    return estimate_trace(
        lambda v: matrix @ v, len(matrix), method=method, products=products, seed=seed
    )


@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_estimates_are_unbiased_and_their_standard_errors_correct(method):
    matrix = decaying()
    found = [of(matrix, method, 30, seed) for seed in range(200)]
    gaps = torch.tensor([each.value - float(matrix.trace()) for each in found])
    errors = torch.tensor([each.error for each in found])
    assert abs(float(gaps.mean())) < 4 * float(gaps.std()) / math.sqrt(200)
    # Two standard errors cover about 95 % with ten or more draws.
    assert 0.88 < float((gaps.abs() < 2 * errors).float().mean()) < 0.99
    assert float(errors.mean()) == pytest.approx(float(gaps.std()), rel=0.2)


def test_hutchinson_has_the_variance_of_its_formula_and_hutch_a_smaller_one():
    matrix = decaying()
    gaps = torch.tensor([of(matrix, "hutchinson", 10, seed).value for seed in range(400)])
    variance = 2 * float(matrix.square().sum() - matrix.diag().square().sum()) / 10
    assert float(gaps.var()) == pytest.approx(variance, rel=0.2)

    def error(method: str) -> float:
        values = [of(matrix, method, 60, seed).value for seed in range(60)]
        return float((torch.tensor(values) - float(matrix.trace())).square().mean())

    assert error("hutch++") < error("hutchinson") / 10


def test_hutch_is_exact_for_matrices_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    thin = torch.randn(50, 3, generator=generator).double()
    found = of(thin @ thin.T, "hutch++", 30)
    assert found.value == pytest.approx(float(thin.square().sum()))
    assert found.error < 1e-10


@pytest.mark.parametrize("products", [6, 7, 8, 29, 31])
def test_exactly_the_requested_number_of_products_is_used(products):
    matrix, used = decaying(50), []

    def product(vector):
        used.append(1)
        return matrix @ vector

    for method in ("hutchinson", "hutch++"):
        used.clear()
        estimate_trace(product, 50, method=method, products=products, seed=0)
        assert len(used) == products


def test_the_trace_is_exact_with_as_many_products_as_weights():
    model, pair = mlp(), drawn((4,))
    for matrix, dense in DENSE.items():
        found = trace(model, cross_entropy, pair, matrix=matrix, products=27)
        assert found.error == 0
        assert float(found) == pytest.approx(float(dense(model, pair).trace()))


def test_the_trace_of_a_network_lies_within_its_error():
    model, pair = image_network(), drawn((1, 5, 5), n=5)
    exact = float(hessian(model, pair).trace())
    for products in (20, 60):
        found = trace(model, cross_entropy, pair, products=products)
        assert abs(float(found) - exact) < 4 * found.error
    plus = trace(model, cross_entropy, pair, products=30, method="hutch++")
    assert astuple(trace(model, cross_entropy, pair)) == pytest.approx(astuple(plus), rel=1e-9)
    plain = trace(model, cross_entropy, pair, products=29, method="hutchinson")
    again = trace(model, cross_entropy, pair, products=29)
    assert astuple(again) == pytest.approx(astuple(plain), rel=1e-9)
    other = trace(model, cross_entropy, pair, products=29, seed=1)
    assert float(other) != pytest.approx(float(plain), rel=1e-6)


def test_estimates_convert_to_numbers_and_text_and_invalid_options_raise():
    assert float(Estimate(2.5, 0.5)) == 2.5
    assert str(Estimate(2.5, 0.5)) == "2.5 ± 0.5"
    assert average([1.0, 3.0]) == Estimate(2.0, 1.0)
    for message, options in {
        "products must be at least 2": {"products": 1},
        r"products must be at least 6": {"products": 5, "method": "hutch++"},
    }.items():
        with pytest.raises(ValueError, match=message):
            trace(mlp(), cross_entropy, drawn((4,)), **options)
