"""The weights a curvature is taken in: a copy of a model's, and flat vectors of their size."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

Vector = Float64[Tensor, " d"]


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """Weights that count, by name, and everything else that the model is called with.

    All are copies: what is measured stays what it was when the model trains on, and nothing that
    a forward pass writes reaches the model.
    """

    chosen: dict[str, Tensor]
    others: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Number of weights that count."""
        return sum(each.numel() for each in self.tensors)

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors of the model by name."""
        return self.others | self.chosen

    @property
    def tensors(self) -> list[Tensor]:
        """The weights that count, in the order of flat vectors."""
        return [*self.chosen.values()]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.tensors[0].device

    def zeros(self) -> list[Tensor]:
        """Sums over batches, in float64, before the first."""
        return [torch.zeros_like(each, dtype=torch.float64) for each in self.tensors]

    def split(self, vector: Vector) -> list[Tensor]:
        """A flat vector as tensors like the weights."""
        if vector.shape != (self.size,):
            raise ValueError(f"vector must be ({self.size},), got {tuple(vector.shape)}")
        pieces = torch.split(vector, [each.numel() for each in self.tensors])
        return [
            torch.empty_like(each).copy_(piece.view(each.shape))
            for each, piece in zip(self.tensors, pieces, strict=True)
        ]

    def moved(self, vector: Vector) -> "Weights":
        """These weights plus a flat vector."""
        steps = self.split(vector)
        moved = {
            name: (each.detach() + step).requires_grad_()
            for (name, each), step in zip(self.chosen.items(), steps, strict=True)
        }
        return Weights(moved, self.others)


def copied(model: nn.Module, parameters: Sequence[str] | None) -> Weights:
    """Copy the weights of a model.

    Args:
        model: its parameters must hold numbers.
        parameters: names of parameters, or of modules, whose weights count; None is every
            parameter that requires a gradient.
    """
    named = dict(model.named_parameters())
    if parameters is None:
        names = [name for name, each in named.items() if each.requires_grad]
    else:
        names = [name for name in named if any(_within(name, each) for each in parameters)]
        for each in parameters:
            if not any(_within(name, each) for name in named):
                raise ValueError(f"no parameter is called {each!r}; there are {_listed([*named])}")
    if not names:
        raise ValueError("no parameter counts: none requires a gradient, or none was named")
    chosen = {name: _copy(named[name]).requires_grad_() for name in names}
    others = {name: _copy(each) for name, each in named.items() if name not in chosen}
    others |= {name: each.detach().clone() for name, each in model.named_buffers()}
    return Weights(chosen, others)


def flat(tensors: Sequence[Tensor]) -> Vector:
    """Tensors, one after the other, as one vector."""
    return torch.cat([each.detach().double().reshape(-1).cpu() for each in tensors])


def added(sums: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Add the part of one batch to the sums."""
    for total, part in zip(sums, parts, strict=True):
        total.add_(part.detach())


def unit(size: int, seed: int) -> Vector:
    """A random direction."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64) / math.sqrt(size)


def signs(size: int, draws: int, seed: int) -> Iterator[Vector]:
    """Random vectors of plus and minus one."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        yield torch.randint(2, (size,), generator=generator).double() * 2 - 1


def _copy(weight: Tensor) -> Tensor:
    layout = torch.channels_last if weight.ndim == 4 else torch.preserve_format
    return weight.detach().clone(memory_format=layout)


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
