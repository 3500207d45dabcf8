"""A small network that predicts a gamma for each example, and the inputs it may have."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.checks import promote_dtype
from calibrant.methods.heads import ForwardPass
from calibrant.shapes import PerExample

Positivity = Literal["sigmoid", "softplus", "softplus_sharp", "softplus_scaled", "tanh"]
# Beyond this, a float32 sigmoid soon rounds to its limit: gamma would be 0 without a gradient.
FLAT = 12.0
Inputs = Literal["features", "noise", "random_features", "intermediate"]
INPUTS = ("features", "noise", "random_features", "intermediate")
# Width of random features and of noise.
WIDTH = 64


class Map(NamedTuple):
    """A map from the reals to a positive gamma, given tau; its inverse; whether tau bounds it."""

    forward: Callable[[Tensor, float], Tensor]
    inverse: Callable[[float, float], float]
    bounded: bool


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


def _within(value: Tensor, low: float, high: float) -> Tensor:
    """Clamp with a straight-through gradient, so that a clamped value can return."""
    return value.clamp(low, high).detach() + (value - value.detach())


def _sigmoid(u: Tensor) -> Tensor:
    return torch.sigmoid(_within(u, -FLAT, FLAT))


def _softplus(u: Tensor) -> Tensor:
    return functional.softplus(_within(u, -FLAT, math.inf))


def _tanh(u: Tensor) -> Tensor:
    # tanh(u) saturates like sigmoid(2 u).
    return _within(torch.tanh(_within(u, -FLAT / 2, FLAT / 2)).abs(), math.exp(-FLAT), 1)


POSITIVITY = {
    "sigmoid": Map(lambda u, tau: tau * _sigmoid(u), lambda g, tau: math.log(g / (tau - g)), True),
    "softplus": Map(
        lambda u, tau: _softplus(u / tau), lambda g, tau: tau * _inverse_softplus(g), False
    ),
    "softplus_sharp": Map(
        lambda u, tau: _softplus(tau * u) / tau,
        lambda g, tau: _inverse_softplus(tau * g) / tau,
        False,
    ),
    "softplus_scaled": Map(
        lambda u, tau: _softplus(u) / tau, lambda g, tau: _inverse_softplus(tau * g), False
    ),
    "tanh": Map(lambda u, tau: tau * _tanh(u), lambda g, tau: math.atanh(g / tau), True),
}


class GammaNetwork(nn.Module):
    """One hidden layer with ReLU, optional attention over the batch, one positive output.

    The order of the examples does not matter. With attention, the gamma of an example depends on
    the other examples of the batch. Gamma starts near 1, or at half of `tau` where that is less.
    It never reaches zero, and has a gradient at the ends of its range, so that it can return.

    The arguments are settings of `GammaNet`. `tau` is the largest gamma of the maps "sigmoid" and
    "tanh", a scale of the others. The global random state is not used.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int,
        attention: bool,
        positivity: str,
        tau: float,
        most: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.map, self.tau, self.most = POSITIVITY[positivity], tau, most
        # Without values: drawing them here would use the global random state.
        self.first = nn.Linear(width, hidden, device="meta")
        self.attend = nn.Linear(hidden, 3 * hidden, device="meta") if attention else None
        self.last = nn.Linear(hidden, 1, device="meta")
        self.to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        start = min(1.0, tau / 2) if self.map.bounded else 1.0
        with torch.no_grad():
            for layer in filter(None, (self.first, self.attend, self.last)):
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.zero_()
            self.last.bias.fill_(self.map.inverse(min(start, most / 2), tau))

    @property
    def top(self) -> float:
        """The largest possible gamma."""
        return min(self.tau, self.most) if self.map.bounded else self.most

    def forward(self, inputs: Tensor) -> PerExample:
        """Gamma of each example, from (n, width)."""
        out = functional.relu(self.first(inputs))
        if self.attend is not None:
            query, key, value = self.attend(out)[None].chunk(3, 2)
            out = out + functional.scaled_dot_product_attention(query, key, value)[0]
        return _within(self.map.forward(self.last(out)[:, 0], self.tau), 0, self.most)


def gamma_inputs(kind: str, forward: ForwardPass, inputs: Tensor, *, seed: int) -> Tensor:
    """Input of the gamma network for every example, (n, w), or for every pixel, (n, w, ...).

    "features" are the inputs of the head. "random_features" are a fixed random layer of the inputs
    (of each pixel for masks). "intermediate" is the output of an inner layer: its mean over
    positions, or for masks, interpolated to the pixels.
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
