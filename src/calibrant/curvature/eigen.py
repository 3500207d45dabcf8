"""Largest eigenvalues of a symmetric matrix that is known by its products."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from calibrant.curvature.weights import Vector, unit
from calibrant.losses.settings import positive

Values: TypeAlias = Float64[Tensor, " k"]
Vectors: TypeAlias = Float64[Tensor, "k d"]

# Vectors that ARPACK holds at least; it looks at what it has found after as many products.
BASIS = 20


def largest(
    product: Callable[[Vector], Vector],
    size: int,
    *,
    k: int,
    tolerance: float,
    start: Vector,
    restarts: int = 100,
) -> tuple[Values, Vectors]:
    """The k algebraically largest eigenvalues, largest first, and their vectors.

    Implicitly restarted Lanczos, by ARPACK. A matrix that is no larger than the basis of Lanczos
    is written down instead.

    Args:
        product: the matrix times a vector.
        size: of the matrix.
        k: how many, at most the size.
        tolerance: error of an eigenvalue, relative to it.
        start: first vector; a vector from a nearby matrix saves products.
        restarts: how often the basis may be made smaller and grown again.
    """
    if not isinstance(k, int) or not 1 <= k <= size:
        raise ValueError(f"k must lie in [1, {size}], the number of weights, got {k}")
    positive("tolerance", tolerance)
    if start.shape != (size,) or not start.isfinite().all() or not start.any():
        raise ValueError(f"start must be ({size},), finite and not zero, got {tuple(start.shape)}")
    basis = max(BASIS, 2 * k + 1)
    if size <= basis:
        rows = torch.eye(size, dtype=torch.float64)
        matrix = torch.stack([product(row) for row in rows])
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        return values.flip(0)[:k], vectors.T.flip(0)[:k].contiguous()

    def multiplied(vector: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(vector.reshape(-1)).double()).numpy()

    wrapped = LinearOperator((size, size), matvec=multiplied, dtype=np.float64)
    try:
        found, columns = eigsh(
            wrapped, k, which="LA", v0=start.numpy(), ncv=basis, tol=tolerance, maxiter=restarts
        )
    except ArpackNoConvergence as error:
        raise FloatingPointError(
            f"{len(error.eigenvalues)} of {k} eigenvalues converged to {tolerance:g} in {restarts} "
            "restarts: ask for fewer, raise tolerance, or use float64 weights"
        ) from None
    except ArpackError as error:
        # ARPACK cannot start where the first product is zero.
        if product(unit(size, seed=0)).any():
            raise FloatingPointError(f"no eigenvalue was found ({error}): change start") from None
        return torch.zeros(k, dtype=torch.float64), torch.eye(k, size, dtype=torch.float64)
    order = np.argsort(found)[::-1]
    return torch.from_numpy(found[order]), torch.from_numpy(columns.T[order])
