"""Shifts of inputs, no longer than a radius, that make a loss large."""

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
    """Shift of each example, no longer than epsilon, that makes a loss large.

    Projected gradient ascent: each step goes `step_size` along the sign of the gradient (linf) or
    along the gradient itself (l2), then back into the ball and between the bounds. A shift never
    goes further than `steps * step_size`, so with too few steps the ball is not reached.

    Args:
        loss: of a shift, summed over the examples.
        start: first shift, (n, ...); zero is the example itself.
        epsilon: radius of the ball.
        steps: gradients taken.
        step_size: length of a step.
        norm: of the ball.
        low: least shift of each number, at most 0; None is no bound.
        high: largest shift of each number, at least 0.

    References:
        Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018,
        arXiv:1706.06083
    """
    shift = start.detach()
    for _ in range(steps):
        shift.requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(loss(shift), shift)
        shift = shift.detach()
        if norm == "linf":
            shift = (shift + step_size * slope.sign()).clamp(-epsilon, epsilon)
        else:
            shift = _within(shift + step_size * _within(slope, 1.0, grow=True), epsilon)
        if low is not None or high is not None:
            # Both bounds move towards zero only, so the shift stays in the ball.
            shift = shift.clamp(low, high)
    return shift


def _within(shift: Tensor, radius: float, *, grow: bool = False) -> Tensor:
    """Each example shortened to a length of at most the radius; to exactly it if it may grow."""
    tiny = torch.finfo(shift.dtype).tiny
    length = shift.flatten(1).norm(dim=1).clamp(min=tiny)
    factor: Tensor = radius / length
    if not grow:
        factor = factor.clamp(max=1)
    return shift * factor.view(-1, *[1] * (shift.ndim - 1))


def dual_norm(slopes: Tensor, norm: Norm) -> PerExample:
    """Most that a linear function with these slopes falls within a ball of radius one, (n,)."""
    flat = slopes.flatten(1)
    return flat.abs().sum(1) if norm == "linf" else flat.norm(dim=1)
