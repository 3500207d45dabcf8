"""Adversarial perturbations of inputs by projected gradient descent (PGD)."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from calibrant.shapes import PerExample

Norm = Literal["linf", "l2"]


def pgd(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    epsilon: float,
    steps: int,
    step_size: float,
    norm: Norm = "linf",
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> Tensor:
    """Perturbation of each example within a radius epsilon that increases a loss.

    Projected gradient ascent: each step moves `step_size` along the sign of the gradient (linf) or
    along the normalised gradient (l2), then projects onto the ball and the bounds. A perturbation
    is never longer than `steps * step_size`, so with too few steps it stays inside the ball.

    Args:
        loss: loss of a perturbation, summed over the examples; `steps` gradients of it are taken.
        start: initial perturbation, (n, ...); zero is the example itself.
        low: lower bound of each element, at most 0; None is no bound.
        high: upper bound of each element, at least 0.

    References:
        Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018,
        arXiv:1706.06083
    """
    delta = start.detach()
    for _ in range(steps):
        delta.requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(delta), delta)
        delta = delta.detach()
        if norm == "linf":
            delta = (delta + step_size * gradient.sign()).clamp(-epsilon, epsilon)
        else:
            delta = _project(delta + step_size * _project(gradient, 1.0, grow=True), epsilon)
        if low is not None or high is not None:
            # Clamping moves elements towards zero only, so the perturbation stays in the ball.
            delta = delta.clamp(low, high)
    return delta


def _project(vectors: Tensor, radius: float, *, grow: bool = False) -> Tensor:
    """Shorten each example's vector to at most the radius; with `grow`, rescale to the radius."""
    tiny = torch.finfo(vectors.dtype).tiny
    length = vectors.flatten(1).norm(dim=1).clamp(min=tiny)
    factor: Tensor = radius / length
    if not grow:
        factor = factor.clamp(max=1)
    return vectors * factor.view(-1, *[1] * (vectors.ndim - 1))


def dual_norm(gradients: Tensor, norm: Norm) -> PerExample:
    """Dual norm of each example's gradient: the largest decrease of a linear function, (n,)."""
    flat = gradients.flatten(1)
    return flat.abs().sum(1) if norm == "linf" else flat.norm(dim=1)
