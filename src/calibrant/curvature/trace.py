"""Trace of a model's curvature: the sum of all eigenvalues."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias, Unpack

import torch
from torch import nn

from calibrant.curvature.batches import Data
from calibrant.curvature.problem import Loss
from calibrant.curvature.products import OperatorOptions, operator
from calibrant.curvature.weights import Vector, random_signs
from calibrant.losses.settings import at_least, one_of

Method: TypeAlias = Literal["hutchinson", "hutch++"]
METHODS = ("hutchinson", "hutch++")
# With fewer products the plain estimator has the smaller error.
ENOUGH = 30


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate and its standard error."""

    value: float
    error: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g}"


def trace(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    method: Method | None = None,
    products: int = 30,
    seed: int = 0,
    **options: Unpack[OperatorOptions],
) -> Estimate:
    r"""Trace from products with random sign vectors, and its standard error.

    $$\mathrm{tr}\, A = E[s^T A s], \qquad s_i = \pm 1$$

    "hutchinson" is the mean over vectors, with variance
    $2 (\|A\|_F^2 - \sum_i a_{ii}^2) / m$. "hutch++" uses a third of the products to find the
    dominant subspace of A, a third for the exact trace there, and a third for "hutchinson" on the
    complement, the only source of its error; it suits spectra with a few large eigenvalues, such
    as those of networks. With no more weights than products the trace is exact.

    Args:
        method: None is "hutch++" from 30 products on.
        products: with the matrix; at least 2, for "hutch++" 6.
        options: of `operator`, as are `model`, `loss` and `data`.

    References:
        Hutchinson, A Stochastic Estimator of the Trace of the Influence Matrix, 1990.
        Meyer et al., Hutch++: Optimal Stochastic Trace Estimation, SOSA 2021, arXiv:2010.09649.
    """
    chosen = method or ("hutch++" if products >= ENOUGH else "hutchinson")
    one_of("method", chosen, METHODS)
    at_least("products", 6 if chosen == "hutch++" else 2, products)
    matrix = operator(model, loss, data, **options)
    return estimate_trace(matrix.product, matrix.size, method=chosen, products=products, seed=seed)


def estimate_trace(
    product: Callable[[Vector], Vector], size: int, *, method: Method, products: int, seed: int
) -> Estimate:
    """The same for any symmetric matrix."""
    if size <= products:
        basis = torch.eye(size, dtype=torch.float64)
        return Estimate(sum(float(each @ product(each)) for each in basis), 0.0)
    if method == "hutchinson":
        return average([float(each @ product(each)) for each in random_signs(size, products, seed)])
    third = products // 3
    vectors = random_signs(size, products - third, seed)
    images = [product(next(vectors)) for _ in range(third)]
    dominant = torch.linalg.qr(torch.stack(images, 1))[0].T.contiguous()
    exact = sum(float(each @ product(each)) for each in dominant)
    complements = (each - dominant.T @ (dominant @ each) for each in vectors)
    rest = average([float(each @ product(each)) for each in complements])
    return Estimate(exact + rest.value, rest.error)


def average(draws: Sequence[float]) -> Estimate:
    """Mean of independent draws and its standard error, which is 0 for a single draw."""
    error = stdev(draws) / math.sqrt(len(draws)) if len(draws) > 1 else 0.0
    return Estimate(fmean(draws), error)
