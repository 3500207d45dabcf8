"""Trace of a model's curvature: the sum of all eigenvalues."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias

import torch
from torch import nn

from calibrant.curvature.batches import Data
from calibrant.curvature.problem import Loss
from calibrant.curvature.products import KEEP, Matrix, operator
from calibrant.curvature.weights import Vector, signs
from calibrant.losses.settings import at_least, one_of

Method: TypeAlias = Literal["hutchinson", "hutch++"]
METHODS = ("hutchinson", "hutch++")
# With fewer products the plain estimator has the smaller error.
ENOUGH = 30


@dataclass(frozen=True)
class Estimate:
    """A value from random draws, and its standard error."""

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
    matrix: Matrix = "hessian",
    method: Method | None = None,
    products: int = 30,
    seed: int = 0,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
    keep: int = KEEP,
) -> Estimate:
    r"""Trace from products with random signs, and its standard error.

    $$\mathrm{tr}\, A = E[s^T A s], \qquad s_i = \pm 1$$

    "hutchinson" is the mean over draws, with variance
    $2 (\|A\|_F^2 - \sum_i a_{ii}^2) / m$. "hutch++" spends a third of the products to find where A
    is large, a third to take the trace there exactly, and a third on draws in the rest, which is
    all that its error is of; a spectrum with a few large values, such as that of a network, suits
    it. With no more weights than products the trace is exact.

    Args:
        model: this and `loss`, `data`, `parameters`, `ignore_index` and `keep` as of `operator`.
        loss: differentiated.
        data: averaged over.
        matrix: "hessian" or "gauss_newton".
        method: "hutchinson" or "hutch++"; None is the second from 30 products on.
        products: with the matrix; at least 2, for "hutch++" 6.
        seed: of the draws.
        parameters: weights that count.
        ignore_index: label that does not count.
        keep: bytes of graphs.

    References:
        Hutchinson, A Stochastic Estimator of the Trace of the Influence Matrix, 1990.
        Meyer et al., Hutch++: Optimal Stochastic Trace Estimation, SOSA 2021, arXiv:2010.09649.
    """
    chosen = method or ("hutch++" if products >= ENOUGH else "hutchinson")
    one_of("method", chosen, METHODS)
    at_least("products", 6 if chosen == "hutch++" else 2, products)
    curvature = operator(
        model,
        loss,
        data,
        matrix=matrix,
        parameters=parameters,
        ignore_index=ignore_index,
        keep=keep,
    )
    return estimated(curvature.product, curvature.size, method=chosen, products=products, seed=seed)


def estimated(
    product: Callable[[Vector], Vector], size: int, *, method: Method, products: int, seed: int
) -> Estimate:
    """The same for any symmetric matrix."""
    if size <= products:
        rows = torch.eye(size, dtype=torch.float64)
        return Estimate(sum(float(row @ product(row)) for row in rows), 0.0)
    if method == "hutchinson":
        return average([float(each @ product(each)) for each in signs(size, products, seed)])
    third = products // 3
    drawn = signs(size, products - third, seed)
    images = [product(next(drawn)) for _ in range(third)]
    large = torch.linalg.qr(torch.stack(images, 1))[0].T.contiguous()
    exact = sum(float(row @ product(row)) for row in large)
    rests = (each - large.T @ (large @ each) for each in drawn)
    rest = average([float(each @ product(each)) for each in rests])
    return Estimate(exact + rest.value, rest.error)


def average(draws: Sequence[float]) -> Estimate:
    """Mean of independent draws and its standard error; one draw has none that is known."""
    error = stdev(draws) / math.sqrt(len(draws)) if len(draws) > 1 else math.nan
    return Estimate(fmean(draws), error)
