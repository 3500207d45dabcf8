r"""Penalty functions of an augmented Lagrangian for a constraint $h \le 0$, and their derivatives.

The derivative at the solution is the next multiplier, so every penalty has $P(0) = 0$,
$P'(0) = \lambda$ and $P' \ge 0$.

References:
    Powell 1969, Hestenes 1969, Rockafellar 1974 (phr)
    Birgin, Castillo and Martinez, Computational Optimization and Applications, 2005 (p2, p3)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.shapes import Scalar

PerClass = float | Scalar | Float[Tensor, " k"]
Values = Float[Tensor, "*any"]
Term = Callable[[Values, float | Tensor, float | Tensor], Values]


@dataclass(frozen=True)
class Penalty:
    """A penalty P(h, multipliers, rho) and its derivative with respect to h; tensors broadcast."""

    value: Term
    derivative: Term


def phr(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Quadratic until the derivative reaches zero, then constant (Powell-Hestenes-Rockafellar).

    $$P = \frac{\max(0, \lambda + \rho h)^2 - \lambda^2}{2 \rho}$$
    """
    # Constant below h = -lambda / rho, where lambda h + rho h^2 / 2 has its minimum.
    clamped = torch.maximum(h, torch.as_tensor(-multipliers / rho).to(h))
    return multipliers * clamped + rho * clamped**2 / 2


def phr_derivative(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Return $\max(0, \lambda + \rho h)$."""
    return torch.relu(multipliers + rho * h)


def p2(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Cubic above zero, a hyperbola below; twice differentiable.

    $$P = \lambda h + \lambda \rho h^2 + \tfrac16 \rho^2 h^3 \;(h \ge 0), \qquad
      P = \frac{\lambda h}{1 - \rho h} \;(h < 0)$$
    """
    return p3(h, multipliers, rho) + rho**2 * h.relu() ** 3 / 6


def p2_derivative(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Return $\lambda + 2 \lambda \rho h + \rho^2 h^2 / 2$, or $\lambda / (1 - \rho h)^2$."""
    return p3_derivative(h, multipliers, rho) + rho**2 * h.relu() ** 2 / 2


def p3(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Quadratic above zero, a hyperbola below; twice differentiable.

    $$P = \lambda h + \lambda \rho h^2 \;(h \ge 0), \qquad
      P = \frac{\lambda h}{1 - \rho h} \;(h < 0)$$

    Proportional to the multiplier, so a multiplier near zero grows slowly.
    """
    above, below = _parts(h)
    return multipliers * (above + rho * above**2 + below / (1 - rho * below))


def p3_derivative(h: Values, multipliers: float | Tensor, rho: float | Tensor) -> Values:
    r"""Return $\lambda + 2 \lambda \rho h$, or $\lambda / (1 - \rho h)^2$ below zero."""
    above, below = _parts(h)
    return multipliers * (2 * rho * above + 1 / (1 - rho * below) ** 2)


PENALTIES = {
    "phr": Penalty(phr, phr_derivative),
    "p2": Penalty(p2, p2_derivative),
    "p3": Penalty(p3, p3_derivative),
}


def _parts(h: Values) -> tuple[Values, Values]:
    """Split into max(h, 0) and min(h, 0), so that neither branch is evaluated out of its range."""
    above = torch.where(h >= 0, h, 0)
    return above, h - above
