"""Eigenvalues of a model's curvature: the largest ones, and their density."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from calibrant.curvature.batches import Data
from calibrant.curvature.problem import Loss
from calibrant.curvature.products import OperatorOptions, operator
from calibrant.curvature.weights import Vector, random_direction, random_signs
from calibrant.losses.settings import at_least, positive

Values: TypeAlias = Float64[Tensor, " k"]
Vectors: TypeAlias = Float64[Tensor, "k d"]
Product: TypeAlias = Callable[[Vector], Vector]

# Smallest number of Lanczos vectors; ARPACK checks convergence after that many products.
BASIS = 20


def top_eigenvalues(model: nn.Module, loss: Loss, data: Data, **options: Any) -> Values:
    """The k largest eigenvalues, largest first; the first is called the sharpness.

    Largest means most positive: early in training the Hessian can have a negative eigenvalue of
    larger magnitude. `options` are those of `top_eigenvectors`.

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
    return top_eigenvectors(model, loss, data, **options)[0]


def top_eigenvectors(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    k: int = 1,
    tolerance: float = 1e-3,
    seed: int = 0,
    start: Vector | None = None,
    **options: Unpack[OperatorOptions],
) -> tuple[Values, Vectors]:
    """The k largest eigenvalues, largest first, and their eigenvectors (k, size) of norm one.

    Args:
        tolerance: relative error of an eigenvalue.
        start: initial vector (size,), such as the eigenvector of an earlier step; default random.
        options: of `operator`, as are `model`, `loss` and `data`.
    """
    matrix = operator(model, loss, data, **options)
    first = random_direction(matrix.size, seed) if start is None else start
    return largest_eigenvalues(matrix.product, matrix.size, k=k, tolerance=tolerance, start=first)


def largest_eigenvalues(
    product: Product,
    size: int,
    *,
    k: int,
    tolerance: float,
    start: Vector,
    restarts: int = 100,
) -> tuple[Values, Vectors]:
    """The k algebraically largest eigenvalues, largest first, and their vectors.

    Implicitly restarted Lanczos (ARPACK); an eigenvector of a similar matrix as `start` saves
    products. A matrix no larger than the Lanczos basis is computed densely instead.
    """
    if not isinstance(k, int) or not 1 <= k <= size:
        raise ValueError(f"k must lie in [1, {size}], the number of weights, got {k}")
    positive("tolerance", tolerance)
    if start.shape != (size,) or not start.isfinite().all() or not start.any():
        raise ValueError(f"start must be ({size},), finite and not zero, got {tuple(start.shape)}")
    basis = max(BASIS, 2 * k + 1)
    if size <= basis:
        matrix = torch.stack([product(unit) for unit in torch.eye(size, dtype=torch.float64)])
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        return values.flip(0)[:k], vectors.T.flip(0)[:k].contiguous()

    def matvec(vector: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(vector.reshape(-1)).double()).numpy()

    wrapped = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    try:
        found, columns = eigsh(
            wrapped, k, which="LA", v0=start.numpy(), ncv=basis, tol=tolerance, maxiter=restarts
        )
    except ArpackNoConvergence as error:
        raise FloatingPointError(
            f"{len(error.eigenvalues)} of {k} eigenvalues converged to {tolerance:g} in {restarts} "
            "restarts: request fewer, raise tolerance, or use float64 weights"
        ) from None
    except ArpackError as error:
        # ARPACK fails where the first product is zero.
        if product(random_direction(size, seed=0)).any():
            raise FloatingPointError(f"no eigenvalue was found ({error}): change start") from None
        return torch.zeros(k, dtype=torch.float64), torch.eye(k, size, dtype=torch.float64)
    order = np.argsort(found)[::-1]
    return torch.from_numpy(found[order]), torch.from_numpy(columns.T[order])


@dataclass(frozen=True, eq=False)
class Density:
    """Spectral density: values, and the fraction of all eigenvalues near each."""

    values: Float64[Tensor, " m"]
    weights: Float64[Tensor, " m"]

    def at(self, grid: Float64[Tensor, " g"], width: float) -> Float64[Tensor, " g"]:
        """Density at the points of a grid, smoothed by a normal kernel."""
        positive("width", width)
        steps = (grid[:, None] - self.values) / width
        curves = torch.exp(-(steps**2) / 2) / (width * math.sqrt(2 * math.pi))
        return curves @ self.weights


def spectral_density(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    steps: int = 40,
    draws: int = 4,
    seed: int = 0,
    **options: Unpack[OperatorOptions],
) -> Density:
    """Density of all eigenvalues by stochastic Lanczos quadrature, `steps * draws` products.

    For each of `draws` random vectors, Lanczos gives a quadrature rule that is exact for
    polynomials up to degree `2 * steps - 1`. Both ends of the spectrum are accurate; the bulk is
    smoothed. `model`, `loss`, `data` and `options` are those of `operator`.

    References:
        Ghorbani, Krishnan and Xiao, An Investigation into Neural Net Optimization via Hessian
        Eigenvalue Density, ICML 2019, arXiv:1901.10159.
    """
    matrix = operator(model, loss, data, **options)
    return density(matrix.product, matrix.size, steps=steps, draws=draws, seed=seed)


def density(product: Product, size: int, *, steps: int, draws: int, seed: int) -> Density:
    """The same for any symmetric matrix."""
    at_least("steps", 1, steps)
    at_least("draws", 1, draws)
    parts = [lanczos(product, start, steps=steps) for start in random_signs(size, draws, seed)]
    values, weights = zip(*parts, strict=True)
    return Density(torch.cat(values), torch.cat(weights) / draws)


def lanczos(
    product: Product, start: Vector, *, steps: int
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, " m"]]:
    """Nodes and weights of the quadrature for one initial vector; at most `steps` of them.

    Every new vector is orthogonalised against all before, twice: otherwise converged eigenvalues
    reappear as copies.
    """
    steps = min(steps, len(start))
    basis = torch.empty(steps, len(start), dtype=torch.float64)
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for step in range(steps):
        image = product(basis[step])
        diagonal.append(float(image @ basis[step]))
        if step == steps - 1:
            break
        known = basis[: step + 1]
        length = image.norm()
        for _ in range(2):
            image = image - known.T @ (known @ image)
        # The Krylov space is exhausted: its basis is invariant under the matrix.
        if image.norm() <= 1e-10 * length:
            break
        off_diagonal.append(float(image.norm()))
        basis[step + 1] = image / image.norm()
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(off_diagonal))
    return torch.from_numpy(values), torch.from_numpy(vectors[0] ** 2)
