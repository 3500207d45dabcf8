"""Logits of perturbed inputs, in forward passes without side effects on the network."""

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
class Neighbourhood:
    """Inputs of a batch, and the logits of a network for perturbed inputs.

    Token ids cannot be perturbed: for them a perturbation is added to the output of the embedding.

    Attributes:
        inputs: inputs of the network.
        zero: the zero perturbation.
        factor: change of an input per unit of perturbation.
        low: lower bound of each element of a perturbation, at most 0; None is no bound.
        high: upper bound, at least 0.
        embedding: for token ids, the layer whose output is perturbed.
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
    ) -> "Neighbourhood":
        """Neighbourhood of inputs, in units of pixel values in [0, 1] or of the inputs.

        If the normalisation of images is known, bounds keep pixel values within [0, 1].
        """
        if not inputs.is_floating_point():
            if inputs.ndim == 4:
                raise TypeError(
                    f"images must be floating point to be perturbed, got {inputs.dtype}: "
                    "normalise them first, with a calibrant.data.Scale"
                )
            layer = _only_embedding(network)
            shape = inputs.shape if isinstance(layer, nn.Embedding) else inputs.shape[:1]
            zero = layer.weight.new_zeros(*shape, layer.embedding_dim)
            return cls(inputs, zero, embedding=layer)
        zero = torch.zeros_like(inputs)
        if scale is None:
            return cls(inputs, zero)
        mean, std = (inputs.new_tensor(each)[:, None, None] for each in (scale.mean, scale.std))
        unit = std if space == "pixel" else torch.ones_like(std)
        # Rounding puts black slightly below zero, but the zero perturbation must be allowed.
        low, high = (((end - mean) / std - inputs) * unit for end in (0, 1))
        return cls(inputs, zero, 1 / unit, low.clamp(max=0), high.clamp(min=0))

    def logits(self, model: nn.Module, delta: Tensor) -> Tensor:
        """Logits of the perturbed inputs."""
        with self._perturbed(delta) as inputs:
            logits: Tensor = model(inputs)
        return logits

    def stateless_logits(self, network: nn.Module, delta: Tensor, *, train: bool = True) -> Tensor:
        """The same without updating buffers; without `train`, no gradient reaches the weights."""
        tensors = {name: each.clone() for name, each in network.named_buffers()}
        if not train:
            tensors |= {name: each.detach() for name, each in network.named_parameters()}
        with self._perturbed(delta) as inputs:
            logits: Tensor = functional_call(network, tensors, (inputs,))
        return logits

    @contextmanager
    def _perturbed(self, delta: Tensor) -> Iterator[Tensor]:
        """Inputs to call a network with; inside, an embedding adds delta to its output."""
        if self.embedding is None:
            yield self.inputs + (delta if self.factor is None else delta * self.factor)
        else:
            handle = self.embedding.register_forward_hook(lambda *called: called[2] + delta)
            try:
                yield self.inputs
            finally:
                handle.remove()


@dataclass(frozen=True, eq=False)
class PerturbedPart:
    """The first images of a batch, and their logits under perturbations."""

    network: nn.Module
    neighbourhood: Neighbourhood
    labels: Tensor
    rng: tuple[Tensor, ...]
    flatten: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.labels)

    def logits_at(self, delta: Tensor, *, train: bool = True) -> tuple[Tensor, Tensor]:
        """Flat logits and labels, with the same dropout each time; buffers are not updated."""
        with restored_rng(self.rng, delta.device):
            logits = self.neighbourhood.stateless_logits(self.network, delta, train=train)
        return self.flatten(logits, self.labels)


def _only_embedding(network: nn.Module) -> nn.Embedding | nn.EmbeddingBag:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    found = [each for each in network.modules() if isinstance(each, kinds)]
    if len(found) != 1:
        raise ValueError(
            "token ids are perturbed in the embedding: the network must have exactly one "
            f"nn.Embedding or nn.EmbeddingBag, got {len(found)}"
        )
    return found[0]


def rng_state(device: torch.device) -> tuple[Tensor, ...]:
    """State of the random generators of the CPU and of a device."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return (torch.get_rng_state(),)


@contextmanager
def restored_rng(draws: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Inside, random numbers (of dropout) repeat from a state; afterwards it is as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(draws[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(draws[1], device)
        yield


def count_first_images(
    network: nn.Module, size: int, part: float, *, rank: int, processes: int
) -> int:
    """How many of a process's images belong to the first part of the global batch.

    Images alternate between processes: rank 0 has image 0 of the global batch, rank 1 image 1.
    `size` is the number of images of this process, `part` a fraction of the global batch. Batch
    norm needs 2 examples for a variance: with it the result is at least 2.
    """
    first = round(part * size * processes)
    mine = math.ceil((first - rank) / processes)
    least = 2 if any(isinstance(each, _BatchNorm) for each in network.modules()) else 1
    return min(max(mine, least), size)


def image_weights(
    labels: Tensor, like: Tensor, ignore_index: int | None
) -> tuple[Tensor, PerExample]:
    """Image index of each valid pixel, and its weight in the mean over its image."""
    valid = torch.ones_like(labels, dtype=torch.bool)
    if labels.ndim > 1 and ignore_index is not None:
        valid = labels != ignore_index
    counts = valid.reshape(len(labels), -1).sum(1)
    image = torch.arange(len(labels), device=labels.device)
    image = image.repeat_interleave(counts, output_size=len(like))
    return image, (1 / counts.to(like.dtype))[image]


def warn_unknown_scale(batch: Batch) -> None:
    """Warn that images with unknown normalisation are perturbed in units of the inputs."""
    if batch.inputs.ndim == 4 and batch.inputs.is_floating_point():
        warnings.warn(
            "the normalisation of the images is unknown, so they are perturbed in units of the "
            "inputs and without bounds: set method.scale to a calibrant.data.Scale, or pass "
            'space="normalized"',
            stacklevel=3,
        )
