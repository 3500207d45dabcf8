"""Natural cubic splines: cubic between knots with two continuous derivatives, linear beyond."""

import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.calibrators.base import check_tensor

# m functions of b knots each, and n points of each function.
Knots = Float[Tensor, "m b"]
Points = Float[Tensor, "m n"]


def check_splines(knots: Tensor, values: Tensor, functions: int) -> None:
    """Refuse knots that do not increase, and values that are not finite."""
    size = knots.shape[1] if knots.ndim == 2 else 0
    if size < 3:
        raise ValueError(f"knots must be (m, b) with at least 3 knots, got {tuple(knots.shape)}")
    check_tensor("knots", knots, (functions, size))
    check_tensor("values", values, (functions, size))
    if bool((knots.diff(dim=1) <= 0).any()):
        raise ValueError("knots must increase within each function")
    if not bool(curvatures(knots, values).isfinite().all()):
        raise ValueError("knots are too close to each other for their values")


def roughness(knots: Knots) -> tuple[Float[Tensor, "m c b"], Float[Tensor, "m c c"]]:
    r"""Return Q and R: curvatures at inner knots are $R^{-1} Q v$ for values v at the knots.

    The penalty $\int (f'')^2$ is $v^T Q^T R^{-1} Q v$.
    """
    gap = knots.diff(dim=1)
    before, after = torch.diag_embed(1 / gap[:, :-1]), torch.diag_embed(1 / gap[:, 1:])
    zero = torch.zeros_like(before[:, :, :1])
    second = torch.cat([before, zero, zero], 2) + torch.cat([zero, zero, after], 2)
    second -= torch.cat([zero, before + after, zero], 2)
    size = gap.shape[1] - 1
    matrix = torch.diag_embed((gap[:, :-1] + gap[:, 1:]) / 3)
    if size > 1:
        beside = torch.diag_embed(gap[:, 1:-1] / 6, offset=1)
        matrix = matrix + beside + beside.mT
    return second, matrix


def curvatures(knots: Knots, values: Knots) -> Knots:
    """Second derivatives at the knots: 0 at both ends, so that the function is linear beyond."""
    second, matrix = roughness(knots)
    inner = torch.linalg.solve(matrix, second @ values[:, :, None])[:, :, 0]
    return torch.nn.functional.pad(inner, (1, 1))


def end_slopes(knots: Knots, values: Knots, curvature: Knots) -> tuple[Tensor, Tensor]:
    """Slopes at the first and the last knot, (m, 1) each."""
    gap = knots.diff(dim=1)
    mean = values.diff(dim=1) / gap
    first = mean[:, :1] - gap[:, :1] * curvature[:, 1:2] / 6
    last = mean[:, -1:] + gap[:, -1:] * curvature[:, -2:-1] / 6
    return first, last


def evaluated(
    points: Points, knots: Knots, values: Knots, curvature: Knots, slopes: tuple[Tensor, Tensor]
) -> Points:
    """Values of m splines at n points of each; linear with the given slopes beyond the knots."""
    left = (torch.searchsorted(knots, points.detach(), right=True) - 1).clamp(0, knots.shape[1] - 2)
    start, end = knots.gather(1, left), knots.gather(1, left + 1)
    gap = end - start
    inside = torch.minimum(torch.maximum(points, knots[:, :1]), knots[:, -1:])
    # Knots that are distinct in float64 may be equal in float32.
    share = (inside - start) / torch.where(gap > 0, gap, 1)
    rest = 1 - share
    linear = rest * values.gather(1, left) + share * values.gather(1, left + 1)
    bent = (rest**3 - rest) * curvature.gather(1, left)
    bent = bent + (share**3 - share) * curvature.gather(1, left + 1)
    below = (points - knots[:, :1]).clamp(max=0) * slopes[0]
    above = (points - knots[:, -1:]).clamp(min=0) * slopes[1]
    return linear + gap.square() / 6 * bent + below + above
