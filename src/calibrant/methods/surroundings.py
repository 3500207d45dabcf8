"""What a network says around a batch, in passes that leave no trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrant.data import Scale

Space = Literal["pixel", "normalized"]


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
