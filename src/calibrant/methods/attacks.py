"""Shifts of inputs that make a loss large, and passes of a network that leave no trace in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrant.data import Scale
from calibrant.shapes import PerExample

Norm = Literal["linf", "l2"]
Space = Literal["pixel", "normalized"]


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


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Inputs of a batch, and what a network says where they are shifted.

    Token numbers cannot be shifted: for them a shift is added to what the embedding returns.

    Attributes:
        inputs: as the network takes them.
        zero: no shift at all.
        factor: change of an input for one unit of shift.
        low: least shift of each number, at most 0; None is no bound.
        high: largest shift of each number, at least 0.
        embedding: for token numbers, the layer that is shifted.
    """

    inputs: Tensor
    zero: Tensor
    factor: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    embedding: nn.Module | None = None

    @classmethod
    def of(
        cls, network: nn.Module, inputs: Tensor, *, scale: Scale | None, space: Space
    ) -> "Surroundings":
        """Around inputs, with shifts in units of pixel values in [0, 1] or of the inputs.

        Where it is known how images became inputs, bounds keep pixel values within [0, 1].
        """
        if not inputs.is_floating_point():
            layer = _only_embedding(network)
            rows = inputs.shape if isinstance(layer, nn.Embedding) else inputs.shape[:1]
            zero = layer.weight.new_zeros(*rows, layer.embedding_dim)
            return cls(inputs, zero, embedding=layer)
        zero = torch.zeros_like(inputs)
        if scale is None:
            return cls(inputs, zero)
        mean, std = (inputs.new_tensor(each)[:, None, None] for each in (scale.mean, scale.std))
        unit = std if space == "pixel" else torch.ones_like(std)
        # Rounding puts black a little below zero; no shift must always be allowed.
        low, high = (((end - mean) / std - inputs) * unit for end in (0, 1))
        return cls(inputs, zero, 1 / unit, low.clamp(max=0), high.clamp(min=0))

    def logits(self, model: nn.Module, shift: Tensor | None = None) -> Tensor:
        """What a network says about the shifted inputs."""
        with self._shifted(shift) as inputs:
            logits: Tensor = model(inputs)
        return logits

    def quiet_logits(self, network: nn.Module, shift: Tensor, *, learns: bool = True) -> Tensor:
        """The same, but running statistics stay; without `learns`, no gradient to the weights."""
        parts = {name: each.clone() for name, each in network.named_buffers()}
        if not learns:
            parts |= {name: each.detach() for name, each in network.named_parameters()}
        with self._shifted(shift) as inputs:
            logits: Tensor = functional_call(network, parts, (inputs,))
        return logits

    @contextmanager
    def _shifted(self, shift: Tensor | None) -> Iterator[Tensor]:
        """Inputs to call a network with; inside, an embedding adds the shift to its answer."""
        if shift is None:
            yield self.inputs
        elif self.embedding is None:
            yield self.inputs + (shift if self.factor is None else shift * self.factor)
        else:
            handle = self.embedding.register_forward_hook(lambda *called: called[2] + shift)
            try:
                yield self.inputs
            finally:
                handle.remove()


def _only_embedding(network: nn.Module) -> nn.Embedding | nn.EmbeddingBag:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    found = [each for each in network.modules() if isinstance(each, kinds)]
    if len(found) != 1:
        raise ValueError(
            "token numbers are shifted in the embedding, of which the network must have exactly "
            f"one, an nn.Embedding or nn.EmbeddingBag; it has {len(found)}"
        )
    return found[0]


def random_draws(device: torch.device) -> tuple[Tensor, ...]:
    """Where the random numbers of a device, and of the processor, stand."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return (torch.get_rng_state(),)


@contextmanager
def repeated(draws: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Inside, random numbers (of dropout) are drawn again from there; outside, they go on."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(draws[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(draws[1], device)
        yield
