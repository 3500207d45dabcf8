"""Inputs of a gamma network: features of the head, or controls that should do worse."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import promote_dtype
from calibrant.methods.heads import ForwardPass

Inputs = Literal["features", "noise", "random_features", "intermediate"]
INPUTS = ("features", "noise", "random_features", "intermediate")
# Width of random features and of noise.
WIDTH = 64


def gamma_inputs(kind: str, forward: ForwardPass, inputs: Tensor, *, seed: int) -> Tensor:
    """Input of the gamma network for every example, (n, w), or for every pixel, (n, w, ...).

    Args:
        kind: "features" are the inputs of the head. "random_features" are a fixed random layer of
            the inputs (of each pixel for masks). "intermediate" is the output of an inner layer:
            its mean over positions, or for masks, interpolated to the pixels.
        forward: logits and features of the network.
        inputs: of the network.
        seed: of the random layer.
    """
    if kind == "features":
        return promote_dtype(forward.features)
    like = promote_dtype(forward.logits.detach())
    size = like.shape[2:]
    if forward.inner is not None:
        inner = promote_dtype(forward.inner)
        if not size:
            return inner.flatten(2).mean(2) if inner.ndim > 2 else inner
        if inner.ndim != like.ndim:
            raise ValueError(
                f"an intermediate layer must return (n, c, ...) with {like.ndim} axes for pixels, "
                f"got {tuple(inner.shape)}: name another layer"
            )
        # No mean over positions: it would include ignored pixels.
        return functional.interpolate(inner, size=size)
    if not inputs.is_floating_point():
        raise ValueError(
            f"random_features need images or vectors, the inputs are {inputs.dtype}: use noise"
        )
    flat = inputs if size else inputs.flatten(1)
    if flat.shape[2:] != size:
        raise ValueError(
            f"random_features of pixels need inputs as large as the logits {tuple(size)}, "
            f"got {tuple(flat.shape[2:])}"
        )
    generator = torch.Generator().manual_seed(seed)
    width = flat.shape[1]
    weights = torch.randn(width, WIDTH, generator=generator, dtype=torch.float64)
    # Scaled to keep the magnitude of the inputs.
    weights = (weights * (2 / width) ** 0.5).to(like)
    return torch.relu(torch.einsum("nc...,cw->nw...", flat.to(like.dtype), weights))


def noise(ids: Tensor, *, seed: int) -> Tensor:
    """A fixed vector per example that is independent of its content, (m, w).

    Uniform with variance 1: a hash of the example's and the pixel's number, as the fractional part
    of a large multiple of a sine. So there is no state, and any number of processes agrees.
    """
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64).to(ids)
    value: Tensor = torch.sin((ids + 1) @ frequencies) * 43758.5453
    return (value - value.floor() - 0.5) * 12**0.5
