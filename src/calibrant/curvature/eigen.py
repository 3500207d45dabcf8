"""Largest eigenvalues of a symmetric matrix from matrix-vector products."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from calibrant.curvature.weights import Vector, random_direction
from calibrant.losses.settings import positive

Values: TypeAlias = Float64[Tensor, " k"]
Vectors: TypeAlias = Float64[Tensor, "k d"]

# Smallest number of Lanczos vectors; ARPACK checks convergence after that many products.
BASIS = 20


def largest_eigenvalues(
    product: Callable[[Vector], Vector],
    size: int,
    *,
    k: int,
    tolerance: float,
    start: Vector,
    restarts: int = 100,
) -> tuple[Values, Vectors]:
    """The k algebraically largest eigenvalues, largest first, and their vectors.

    Implicitly restarted Lanczos (ARPACK). A matrix no larger than the Lanczos basis is computed
    densely instead.

    Args:
        product: the matrix times a vector.
        size: of the matrix.
        k: number of eigenvalues, at most the size.
        tolerance: relative error of an eigenvalue.
        start: initial vector; an eigenvector of a similar matrix saves products.
        restarts: of the Lanczos basis.
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
