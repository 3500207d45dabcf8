"""Eigenvalues of a model's curvature: the largest ones, and how all of them are spread."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from scipy.linalg import eigh_tridiagonal
from torch import Tensor, nn

from calibrant.curvature.batches import Data
from calibrant.curvature.eigen import Values, Vectors, largest
from calibrant.curvature.problem import Loss
from calibrant.curvature.products import KEEP, Matrix, operator
from calibrant.curvature.weights import Vector, signs, unit
from calibrant.losses.settings import at_least, positive


def top_eigenvalues(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    k: int = 1,
    matrix: Matrix = "hessian",
    tolerance: float = 1e-3,
    seed: int = 0,
    start: Vector | None = None,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
    keep: int = KEEP,
) -> Values:
    """The k largest eigenvalues, largest first; the first is what is called sharpness.

    Largest means most positive: early in training the Hessian can have a negative eigenvalue that
    is larger in size. Arguments as of `top_eigenvectors`.

    References:
        Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability,
        ICLR 2021, arXiv:2103.00065.

    Examples:
        >>> from calibrant.losses import cross_entropy
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> data = torch.eye(2), torch.tensor([0, 1])
        >>> round(float(top_eigenvalues(model, cross_entropy, data)), 6)
        0.25
    """
    return top_eigenvectors(
        model,
        loss,
        data,
        k=k,
        matrix=matrix,
        tolerance=tolerance,
        seed=seed,
        start=start,
        parameters=parameters,
        ignore_index=ignore_index,
        keep=keep,
    )[0]


def top_eigenvectors(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    k: int = 1,
    matrix: Matrix = "hessian",
    tolerance: float = 1e-3,
    seed: int = 0,
    start: Vector | None = None,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
    keep: int = KEEP,
) -> tuple[Values, Vectors]:
    """The k largest eigenvalues, largest first, and their vectors (k, size) of length one.

    Args:
        model: this and `loss`, `data`, `parameters`, `ignore_index` and `keep` as of `operator`.
        loss: differentiated.
        data: averaged over.
        k: how many, at most the number of weights.
        matrix: "hessian" or "gauss_newton".
        tolerance: error of an eigenvalue, relative to it.
        seed: of the first direction.
        start: first direction instead, (size,); the vector of an earlier step of a training.
        parameters: weights that count.
        ignore_index: label that does not count.
        keep: bytes of graphs.
    """
    curvature = operator(
        model,
        loss,
        data,
        matrix=matrix,
        parameters=parameters,
        ignore_index=ignore_index,
        keep=keep,
    )
    first = unit(curvature.size, seed) if start is None else start
    return largest(curvature.product, curvature.size, k=k, tolerance=tolerance, start=first)


@dataclass(frozen=True, eq=False)
class Density:
    """How the eigenvalues are spread: places and the share of all eigenvalues near each."""

    values: Float64[Tensor, " m"]
    weights: Float64[Tensor, " m"]

    def at(self, grid: Float64[Tensor, " g"], width: float) -> Float64[Tensor, " g"]:
        """Density at the points of a grid, each value widened to a normal curve."""
        positive("width", width)
        steps = (grid[:, None] - self.values) / width
        curves = torch.exp(-(steps**2) / 2) / (width * math.sqrt(2 * math.pi))
        return curves @ self.weights


def spectral_density(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    matrix: Matrix = "hessian",
    steps: int = 40,
    draws: int = 4,
    seed: int = 0,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
    keep: int = KEEP,
) -> Density:
    """Stochastic Lanczos quadrature: the spread of all eigenvalues from `steps * draws` products.

    From each random direction, Lanczos gives places and weights that integrate every polynomial
    up to degree `2 * steps - 1` as exactly as the direction stands for all. Both ends of the
    spectrum are met well; what lies between is a smoothed picture.

    Args:
        model: this and `loss`, `data`, `parameters`, `ignore_index` and `keep` as of `operator`.
        loss: differentiated.
        data: averaged over.
        matrix: "hessian" or "gauss_newton".
        steps: of Lanczos, for each direction.
        draws: directions.
        seed: of the directions.
        parameters: weights that count.
        ignore_index: label that does not count.
        keep: bytes of graphs.

    References:
        Ghorbani, Krishnan and Xiao, An Investigation into Neural Net Optimization via Hessian
        Eigenvalue Density, ICML 2019, arXiv:1901.10159.
    """
    curvature = operator(
        model,
        loss,
        data,
        matrix=matrix,
        parameters=parameters,
        ignore_index=ignore_index,
        keep=keep,
    )
    return density(curvature.product, curvature.size, steps=steps, draws=draws, seed=seed)


def density(
    product: Callable[[Vector], Vector], size: int, *, steps: int, draws: int, seed: int
) -> Density:
    """The same for any symmetric matrix."""
    at_least("steps", 1, steps)
    at_least("draws", 1, draws)
    parts = [lanczos(product, start, steps=steps) for start in signs(size, draws, seed)]
    values, weights = zip(*parts, strict=True)
    return Density(torch.cat(values), torch.cat(weights) / draws)


def lanczos(
    product: Callable[[Vector], Vector], start: Vector, *, steps: int
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, " m"]]:
    """Places and weights of the quadrature of one direction; at most `steps` of them.

    Every new vector is made orthogonal to all before, twice: otherwise eigenvalues that are found
    come back as copies.
    """
    steps = min(steps, len(start))
    basis = torch.empty(steps, len(start), dtype=torch.float64)
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        image = product(basis[step])
        diagonal.append(float(image @ basis[step]))
        if step == steps - 1:
            break
        known = basis[: step + 1]
        length = image.norm()
        for _ in range(2):
            image = image - known.T @ (known @ image)
        # Nothing new is left: the directions so far hold all that this start can reach.
        if image.norm() <= 1e-10 * length:
            break
        beside.append(float(image.norm()))
        basis[step + 1] = image / image.norm()
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
    return torch.from_numpy(values), torch.from_numpy(vectors[0] ** 2)
