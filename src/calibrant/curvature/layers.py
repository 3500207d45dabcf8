"""Convolutions and batch norms with fast second derivatives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

Maps: TypeAlias = Float[Tensor, "n c ..."]
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
        return None if module.running_mean is None else partial(_normalised, module)
    if isinstance(module, CONVOLUTIONS) and own in [each.forward for each in CONVOLUTIONS]:
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return partial(_convolved, module, twice) if plain else None
    return None


def _normalised(norm: _BatchNorm, x: Maps) -> Maps:
    mean, var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    scale = torch.rsqrt(var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    offset = -mean * scale
    if norm.bias is not None:
        offset = offset + norm.bias
    return scaled(x, scale, offset)


def _convolved(layer: _ConvNd, twice: bool, x: Tensor) -> Tensor:
    if x.ndim < layer.weight.ndim:
        return _convolved(layer, twice, x[None])[0]
    how = (layer.stride, layer.padding, layer.dilation, False, [0] * (x.ndim - 2), layer.groups)
    return convolution(x, layer.weight, layer.bias, how, twice)


class _Convolution(torch.autograd.Function):
    """A convolution whose backward is `_ConvolutionGradients`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Any], twice: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.twice = how, twice
        out: Tensor = torch.ops.aten.convolution(x, weight, bias, *how)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not ctx.twice:
            x, weight = x.detach(), weight.detach()
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        found = convolution_gradients(grad, x, weight, ctx.how, (for_x, for_weight))
        total = _per_channel(grad) if for_bias else None
        return found[0], found[1], total, None, None


class _ConvolutionGradients(torch.autograd.Function):
    """Gradients of grad . convolution(x, weight) in x and weight, where needed; linear in all."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        how: Sequence[Any],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, x, weight)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return _both(grad, x, weight, how, needed)

    @staticmethod
    def backward(
        ctx: Any, along_x: Tensor | None, along_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        # The product rule: each vector replaces the variable of its gradient.
        grad, x, weight = ctx.saved_tensors
        for_grad, for_x, for_weight = ctx.needs_input_grad[:3]
        parts = []
        if for_grad and along_x is not None:
            parts.append(torch.ops.aten.convolution(along_x, weight, None, *ctx.how))
        if for_grad and along_weight is not None:
            parts.append(torch.ops.aten.convolution(x, along_weight, None, *ctx.how))
        needed = for_x and along_weight is not None, for_weight and along_x is not None
        like = x if along_x is None else along_x, weight if along_weight is None else along_weight
        found = _both(grad, *like, ctx.how, needed) if any(needed) else (None, None)
        return sum(parts[1:], parts[0]) if parts else None, *found, None, None


class _Scaled(torch.autograd.Function):
    """A multiplication and an addition per channel, whose backward is `_ScaleGradients`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return torch.addcmul(_broad(offset, x), x, _broad(scale, x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = scale_gradients(grad, *ctx.saved_tensors, ctx.needs_input_grad[:2])
        return *found, _per_channel(grad) if ctx.needs_input_grad[2] else None


class _ScaleGradients(torch.autograd.Function):
    """Gradients of grad . (x scale) in x and scale, where needed; each in one pass."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, scale: Tensor, needed: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, x, scale)
        ctx.set_materialize_grads(False)
        for_x, for_scale = needed
        return (
            grad * _broad(scale, x) if for_x else None,
            _per_channel(grad * x) if for_scale else None,
        )

    @staticmethod
    def backward(
        ctx: Any, along_x: Tensor | None, along_scale: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad, x, scale = ctx.saved_tensors
        for_grad, for_x, for_scale = ctx.needs_input_grad[:3]
        total = None
        if for_grad and along_x is not None:
            total = along_x * _broad(scale, x)
        if for_grad and along_scale is not None:
            broad = _broad(along_scale, x)
            total = x * broad if total is None else torch.addcmul(total, x, broad)
        return (
            total,
            grad * _broad(along_scale, x) if for_x and along_scale is not None else None,
            _per_channel(grad * along_x) if for_scale and along_x is not None else None,
            None,
        )


def _broad(channels: Tensor, maps: Tensor) -> Tensor:
    return channels.view(-1, *[1] * (maps.ndim - 2))


def _per_channel(maps: Tensor) -> Tensor:
    return maps.sum((0, *range(2, maps.ndim)))


def _both(
    grad: Tensor, x: Tensor, weight: Tensor, how: Sequence[Any], needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    found = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [*needed, False])
    return found[0], found[1]


convolution: Callable[..., Tensor] = _Convolution.apply
convolution_gradients: Callable[..., tuple[Tensor | None, Tensor | None]] = (
    _ConvolutionGradients.apply
)
scaled: Callable[..., Tensor] = _Scaled.apply
scale_gradients: Callable[..., tuple[Tensor | None, Tensor | None]] = _ScaleGradients.apply
