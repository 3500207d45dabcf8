"""Convolutions and batch norms in a form whose second derivatives are quick."""

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
def quick(model: nn.Module, *, twice: bool) -> Iterator[None]:
    """Replace the forward of torch's own convolutions and batch norms for a while.

    Values and derivatives are the same. Torch's second derivative of a convolution always computes
    four convolutions, wanted or not, one of them without its fast kernels; that of batch norm in
    evaluation mode forgets that it is a fixed multiplication and addition.

    Args:
        model: in evaluation mode.
        twice: whether gradients will be differentiated in the weights; if not, only in the vector
            that was pulled back.
    """
    replaced: list[nn.Module] = []
    try:
        for module in model.modules():
            forward = _forward(module, twice)
            # A forward that someone else has replaced is left alone.
            if forward is not None and "forward" not in module.__dict__:
                module.__dict__["forward"] = forward
                replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.__dict__["forward"]


def mixes_examples(model: nn.Module) -> bool:
    """Whether a batch norm has no running statistics: then examples depend on each other."""
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
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    return scaled(x, scale, shift)


def _convolved(layer: _ConvNd, twice: bool, x: Tensor) -> Tensor:
    if x.ndim < layer.weight.ndim:
        return _convolved(layer, twice, x[None])[0]
    how = (layer.stride, layer.padding, layer.dilation, False, [0] * (x.ndim - 2), layer.groups)
    return convolution(x, layer.weight, layer.bias, how, twice)


class Convolution(torch.autograd.Function):
    """A convolution whose gradient is `Slopes`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Any], twice: bool
    ) -> Tensor:
        """Convolve."""
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.twice = how, twice
        out: Tensor = torch.ops.aten.convolution(x, weight, bias, *how)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the input, the weight and the bias."""
        x, weight = ctx.saved_tensors
        if not ctx.twice:
            x, weight = x.detach(), weight.detach()
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        found = slopes(slope, x, weight, ctx.how, (for_x, for_weight))
        total = _per_channel(slope) if for_bias else None
        return found[0], found[1], total, None, None


class Slopes(torch.autograd.Function):
    """The gradients of a convolution, linear in the slope, in the input and in the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        slope: Tensor,
        x: Tensor,
        weight: Tensor,
        how: Sequence[Any],
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of slope . convolution(x, weight) in x and in weight, where wanted."""
        ctx.save_for_backward(slope, x, weight)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return _both(slope, x, weight, how, wanted)

    @staticmethod
    def backward(
        ctx: Any, along_x: Tensor | None, along_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The product rule: each vector takes the place of what its gradient was taken in."""
        slope, x, weight = ctx.saved_tensors
        for_slope, for_x, for_weight = ctx.needs_input_grad[:3]
        parts = []
        if for_slope and along_x is not None:
            parts.append(torch.ops.aten.convolution(along_x, weight, None, *ctx.how))
        if for_slope and along_weight is not None:
            parts.append(torch.ops.aten.convolution(x, along_weight, None, *ctx.how))
        wanted = for_x and along_weight is not None, for_weight and along_x is not None
        like = x if along_x is None else along_x, weight if along_weight is None else along_weight
        found = _both(slope, *like, ctx.how, wanted) if any(wanted) else (None, None)
        return sum(parts[1:], parts[0]) if parts else None, *found, None, None


class Scaled(torch.autograd.Function):
    """A multiplication and an addition for each channel, whose gradient is `ScaledSlopes`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Multiply and add."""
        ctx.save_for_backward(x, scale)
        return torch.addcmul(_broad(shift, x), x, _broad(scale, x))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the input, the scale and the shift."""
        found = scaled_slopes(slope, *ctx.saved_tensors, ctx.needs_input_grad[:2])
        return *found, _per_channel(slope) if ctx.needs_input_grad[2] else None


class ScaledSlopes(torch.autograd.Function):
    """The gradients of `Scaled`, each in one pass over the maps."""

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, x: Tensor, scale: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of slope . (x scale) in x and in scale, where wanted."""
        ctx.save_for_backward(slope, x, scale)
        ctx.set_materialize_grads(False)
        for_x, for_scale = wanted
        return (
            slope * _broad(scale, x) if for_x else None,
            _per_channel(slope * x) if for_scale else None,
        )

    @staticmethod
    def backward(
        ctx: Any, along_x: Tensor | None, along_scale: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The product rule."""
        slope, x, scale = ctx.saved_tensors
        for_slope, for_x, for_scale = ctx.needs_input_grad[:3]
        there = None
        if for_slope and along_x is not None:
            there = along_x * _broad(scale, x)
        if for_slope and along_scale is not None:
            broad = _broad(along_scale, x)
            there = x * broad if there is None else torch.addcmul(there, x, broad)
        return (
            there,
            slope * _broad(along_scale, x) if for_x and along_scale is not None else None,
            _per_channel(slope * along_x) if for_scale and along_x is not None else None,
            None,
        )


def _broad(channels: Tensor, maps: Tensor) -> Tensor:
    return channels.view(-1, *[1] * (maps.ndim - 2))


def _per_channel(maps: Tensor) -> Tensor:
    return maps.sum((0, *range(2, maps.ndim)))


def _both(
    slope: Tensor, x: Tensor, weight: Tensor, how: Sequence[Any], wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    found = torch.ops.aten.convolution_backward(slope, x, weight, None, *how, [*wanted, False])
    return found[0], found[1]


convolution: Callable[..., Tensor] = Convolution.apply
slopes: Callable[..., tuple[Tensor | None, Tensor | None]] = Slopes.apply
scaled: Callable[..., Tensor] = Scaled.apply
scaled_slopes: Callable[..., tuple[Tensor | None, Tensor | None]] = ScaledSlopes.apply
