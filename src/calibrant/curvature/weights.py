"""A copy of a model's weights, and flat vectors of their size."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from calibrant.files.checks import listed

Vector = Float64[Tensor, " d"]


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """Chosen weights by name, and all other tensors of the model.

    All are copies: they stay the same when the model is trained further, and a forward pass that
    writes to buffers does not change the model.
    """

    chosen: dict[str, Tensor]
    others: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Number of chosen weights."""
        return sum(each.numel() for each in self.tensors)

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors of the model by name."""
        return self.others | self.chosen

    @property
    def tensors(self) -> list[Tensor]:
        """The chosen weights, in the order of flat vectors."""
        return [*self.chosen.values()]

    def zeros(self) -> list[Tensor]:
        """Zeros in float64, to accumulate sums over batches."""
        return [torch.zeros_like(each, dtype=torch.float64) for each in self.tensors]

    def split(self, vector: Vector) -> list[Tensor]:
        """A flat vector as tensors with the shapes of the weights."""
        if vector.shape != (self.size,):
            raise ValueError(f"vector must be ({self.size},), got {tuple(vector.shape)}")
        parts = torch.split(vector, [each.numel() for each in self.tensors])
        return [
            torch.empty_like(each).copy_(part.view(each.shape))
            for each, part in zip(self.tensors, parts, strict=True)
        ]

    def moved(self, vector: Vector) -> "Weights":
        """These weights plus a flat vector."""
        pairs = zip(self.tensors, self.split(vector), strict=True)
        moved = [(each.detach() + step).requires_grad_() for each, step in pairs]
        return Weights(dict(zip(self.chosen, moved, strict=True)), self.others)


def copy_weights(model: nn.Module, parameters: Sequence[str] | None) -> Weights:
    """Copy the weights of a model; `parameters` as for `operator`."""
    named = dict(model.named_parameters())
    if parameters is None:
        names = [name for name, each in named.items() if each.requires_grad]
    else:
        within = {part: [n for n in named if f"{n}.".startswith(f"{part}.")] for part in parameters}
        for part, found in within.items():
            if not found:
                raise ValueError(f"no parameter {part!r}; expected one of {listed([*named])}")
        names = [name for name in named if any(name in found for found in within.values())]
    if not names:
        raise ValueError("no parameter is chosen: none requires a gradient, or none was named")
    chosen = {name: _copy(named[name]).requires_grad_() for name in names}
    others = {name: _copy(each) for name, each in named.items() if name not in chosen}
    others |= {name: each.detach().clone() for name, each in model.named_buffers()}
    return Weights(chosen, others)


def flat(tensors: Sequence[Tensor]) -> Vector:
    """Concatenate tensors to one flat vector."""
    return torch.cat([each.detach().double().reshape(-1).cpu() for each in tensors])


def accumulate(sums: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Add the values of one batch to the sums."""
    for total, part in zip(sums, parts, strict=True):
        total.add_(part.detach())


def random_direction(size: int, seed: int) -> Vector:
    """A random vector of norm about one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64) / math.sqrt(size)


def random_signs(size: int, draws: int, seed: int) -> Iterator[Vector]:
    """Random vectors of entries 1 and -1 (Rademacher)."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        yield torch.randint(2, (size,), generator=generator).double() * 2 - 1


def _copy(weight: Tensor) -> Tensor:
    layout = torch.channels_last if weight.ndim == 4 else torch.preserve_format
    return weight.detach().clone(memory_format=layout)
