"""Convolutions and batch norms with fast second derivatives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

Maps: TypeAlias = Float[Tensor, "n c ..."]
Gradients: TypeAlias = tuple[Tensor | None, Tensor | None]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@contextmanager
def twice_differentiable(model: nn.Module, *, twice: bool) -> Iterator[None]:
    """Inside, torch's convolutions and batch norms have a faster second derivative.

    Values and derivatives are the same. Torch's second derivative of a convolution always computes
    four convolutions, needed or not, one of them without fast kernels; that of batch norm in
    evaluation mode does not use that it is a fixed multiplication and addition.

    Args:
        model: in evaluation mode.
        twice: whether gradients will be differentiated with respect to the weights; if not, only
            with respect to the vector of a vector-Jacobian product.
    """
    replaced: list[nn.Module] = []
    try:
        for module in model.modules():
            forward = _forward(module, twice)
            # Keep a forward that other code has replaced.
            if forward is not None and "forward" not in module.__dict__:
                module.__dict__["forward"] = forward
                replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.__dict__["forward"]


def mixes_examples(model: nn.Module) -> bool:
    """Whether a batch norm has no running statistics, so that examples depend on each other."""
    norms = (each for each in model.modules() if isinstance(each, _BatchNorm))
    return any(each.running_mean is None for each in norms)


def _forward(module: nn.Module, twice: bool) -> Callable[[Tensor], Tensor] | None:
    own = type(module).forward
    if isinstance(module, _BatchNorm) and own is _BatchNorm.forward:
        return None if module.running_mean is None else partial(_normalised, module, twice)
    if isinstance(module, CONVOLUTIONS) and own in [each.forward for each in CONVOLUTIONS]:
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return partial(_convolved, module, twice) if plain else None
    return None


def _normalised(norm: _BatchNorm, twice: bool, x: Maps) -> Maps:
    mean, var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    scale = torch.rsqrt(var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    offset = -mean * scale
    if norm.bias is not None:
        offset = offset + norm.bias
    return mapped(x, scale, offset, SCALE, twice)


def _convolved(layer: _ConvNd, twice: bool, x: Tensor) -> Tensor:
    if x.ndim < layer.weight.ndim:
        return _convolved(layer, twice, x[None])[0]
    how = (layer.stride, layer.padding, layer.dilation, False, [0] * (x.ndim - 2), layer.groups)
    bilinear = _Bilinear(partial(_convolve, how), partial(_convolution_gradients, how))
    return mapped(x, layer.weight, layer.bias, bilinear, twice)


@dataclass(frozen=True)
class _Bilinear:
    """A map that is linear in its input and in its weight.

    Attributes:
        product: input times weight, plus a bias per channel or a tensor of the output's shape.
        gradients: derivatives of grad . product(x, weight) by x and by weight, where needed.
    """

    product: Callable[..., Tensor]
    gradients: Callable[[Tensor, Tensor, Tensor, Sequence[bool]], Gradients]


def _convolve(
    how: Sequence[Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    plus: Tensor | None = None,
) -> Tensor:
    out: Tensor = torch.ops.aten.convolution(x, weight, bias, *how)
    return out if plus is None else out.add_(plus)


def _convolution_gradients(
    how: Sequence[Any], grad: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]
) -> Gradients:
    found = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [*needed, False])
    return found[0], found[1]


def _scale(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, plus: Tensor | None = None
) -> Tensor:
    start = plus if bias is None else _broad(bias, x)
    return x * _broad(scale, x) if start is None else start.addcmul(x, _broad(scale, x))


def _scale_gradients(grad: Tensor, x: Tensor, scale: Tensor, needed: Sequence[bool]) -> Gradients:
    for_x = grad * _broad(scale, x) if needed[0] else None
    return for_x, _per_channel(grad * x) if needed[1] else None


SCALE = _Bilinear(_scale, _scale_gradients)


class _Map(torch.autograd.Function):
    """A bilinear map plus a bias per channel, whose backward is `_MapGradients`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, bilinear: _Bilinear, twice: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bilinear, ctx.twice = bilinear, twice
        return bilinear.product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not ctx.twice:
            x, weight = x.detach(), weight.detach()
        found = map_gradients(grad, x, weight, ctx.bilinear, ctx.needs_input_grad[:2])
        return *found, _per_channel(grad) if ctx.needs_input_grad[2] else None, None, None


class _MapGradients(torch.autograd.Function):
    """The gradients of a bilinear map, linear in the output gradient, the input and the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bilinear: _Bilinear,
        needed: Sequence[bool],
    ) -> Gradients:
        ctx.save_for_backward(grad, x, weight)
        ctx.bilinear = bilinear
        ctx.set_materialize_grads(False)
        return bilinear.gradients(grad, x, weight, needed)

    @staticmethod
    def backward(
        ctx: Any, along_x: Tensor | None, along_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        # The product rule: each vector replaces the variable of its gradient.
        grad, x, weight = ctx.saved_tensors
        for_grad, for_x, for_weight = ctx.needs_input_grad[:3]
        total = None
        if for_grad and along_x is not None:
            total = ctx.bilinear.product(along_x, weight)
        if for_grad and along_weight is not None:
            total = ctx.bilinear.product(x, along_weight, plus=total)
        needed = for_x and along_weight is not None, for_weight and along_x is not None
        like = x if along_x is None else along_x, weight if along_weight is None else along_weight
        found = ctx.bilinear.gradients(grad, *like, needed) if any(needed) else (None, None)
        return total, *found, None, None


def _broad(channels: Tensor, maps: Tensor) -> Tensor:
    return channels.view(-1, *[1] * (maps.ndim - 2))


def _per_channel(maps: Tensor) -> Tensor:
    return maps.sum((0, *range(2, maps.ndim)))


mapped: Callable[..., Tensor] = _Map.apply
map_gradients: Callable[..., Gradients] = _MapGradients.apply
