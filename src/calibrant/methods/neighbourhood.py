"""What a network says around a batch, in passes that leave no trace in it."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from calibrant.data import Batch, Scale
from calibrant.shapes import PerExample

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
            if inputs.ndim == 4:
                raise TypeError(
                    f"images must be floating point numbers to be shifted, got {inputs.dtype}: "
                    "make inputs of them first, with a calibrant.data.Scale"
                )
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


@dataclass(frozen=True, eq=False)
class Around:
    """The first images of a batch, and what the network says where they are shifted."""

    network: nn.Module
    near: Surroundings
    labels: Tensor
    draws: tuple[Tensor, ...]
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def count(self) -> int:
        """How many images."""
        return len(self.labels)

    def nearby(self, shift: Tensor, *, learns: bool = True) -> tuple[Tensor, Tensor]:
        """Logits and labels of the rows that count, with the same dropout; statistics stay."""
        with repeated(self.draws, shift.device):
            answer = self.near.quiet_logits(self.network, shift, learns=learns)
        return self.rows(answer, self.labels)


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


def first_images(network: nn.Module, size: int, part: float, *, rank: int, processes: int) -> int:
    """How many of a process's images belong to the first part of the batch of all processes.

    They take turns: the first process has image 0 of that batch, the second image 1.

    Args:
        network: with batch norm, which knows no variance of one vector, at least 2 are taken.
        size: images of this process.
        part: part of the whole batch.
        rank: of this process.
        processes: how many there are.
    """
    first = round(part * size * processes)
    mine = math.ceil((first - rank) / processes)
    least = 2 if any(isinstance(each, _BatchNorm) for each in network.modules()) else 1
    return min(max(mine, least), size)


def shares(labels: Tensor, like: Tensor, ignore_index: int | None) -> tuple[Tensor, PerExample]:
    """Which image each row belongs to, and what part of the image's rows it is."""
    counts = torch.ones_like(labels, dtype=torch.bool)
    if labels.ndim > 1 and ignore_index is not None:
        counts = labels != ignore_index
    held = counts.reshape(len(labels), -1).sum(1)
    image = torch.arange(len(labels), device=labels.device)
    image = image.repeat_interleave(held, output_size=len(like))
    return image, (1 / held.to(like.dtype))[image]


def warn_of_images(batch: Batch) -> None:
    """Say what happens to images of which it is not known how they became inputs."""
    if batch.inputs.ndim == 4 and batch.inputs.is_floating_point():
        warnings.warn(
            "how images became inputs is not known, so they are shifted in their own units and "
            "without bounds: set method.scale to a calibrant.data.Scale, or give "
            'space="normalized"',
            stacklevel=3,
        )
