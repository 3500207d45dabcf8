"""Quadratic functions over numbers that must not be negative."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

Hessian = Float64[np.ndarray, "m m"]
Point = Float64[np.ndarray, "m"]


def nonnegative_minimum(hessian: Hessian, linear: Point) -> Point:
    r"""Minimise $\frac{1}{2} x^\top H x + c^\top x$ over $x \ge 0$, for a positive definite H.

    With $H = L L^\top$ this is the least-squares problem $\|L^\top x + L^{-1} c\|^2$.

    Examples:
        >>> nonnegative_minimum(np.eye(2), np.array([-1.0, 1.0])).tolist()
        [1.0, 0.0]
    """
    root = np.linalg.cholesky(hessian)
    target = solve_triangular(root, -linear, lower=True, check_finite=False)
    return np.asarray(nnls(root.T, target)[0])
