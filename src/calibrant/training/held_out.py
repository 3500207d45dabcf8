"""Held-out batches for the loop of another library, in an order that can be resumed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from calibrant.training.randomness import meta_order


@dataclass(frozen=True)
class _Positions:
    """Positions in a dataset, batch after batch without end; a batch sampler of torch."""

    total: int
    size: int
    seed: int
    first: int
    rank: int
    world_size: int

    def __iter__(self) -> Iterator[list[int]]:
        position = self.first
        while True:
            index = meta_order(self.total, self.size, seed=self.seed, position=position)
            yield index[self.rank :: self.world_size].tolist()
            position += 1


class HeldOut:
    """Endless batches of held-out data: which examples come next depends on the position alone.

    Args:
        data: a dataset with a length, or a loader, of which the dataset, the workers and the
            function that makes batches are used, but not the order.
        seed: of the order.
    """

    def __init__(self, data: Dataset[Any] | DataLoader[Any], *, seed: int = 0) -> None:
        self.loader = data if isinstance(data, DataLoader) else None
        self.dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        self.seed = seed
        if not getattr(self.dataset, "__len__", lambda: 0)():
            raise ValueError("held-out data must be a dataset with a length, of at least 1 example")
        self._next = -1
        self._batches: Iterator[Any] = iter(())

    def batch(self, position: int, size: int, rank: int, world_size: int) -> Any:
        """The batch of a position, or the share of this process.

        Args:
            position: number of the batch; the next one is at hand, others are looked up.
            size: examples of all processes; for a loader its batch size in each of them.
            rank: number of this process.
            world_size: number of processes.
        """
        if position != self._next:
            self._batches = self._from(position, size, rank, world_size)
        self._next = position + 1
        return next(self._batches)

    def _from(self, position: int, size: int, rank: int, world_size: int) -> Iterator[Any]:
        options: dict[str, Any] = {}
        if self.loader is not None:
            size = (self.loader.batch_size or size) * world_size
            names = ("collate_fn", "num_workers", "pin_memory", "worker_init_fn")
            options = {name: getattr(self.loader, name) for name in names}
        order = _Positions(len(self.dataset), size, self.seed, position, rank, world_size)
        # Or else each iterator would draw from torch's own generator, which shuffles training.
        options["generator"] = torch.Generator().manual_seed(self.seed)
        return iter(DataLoader(self.dataset, batch_sampler=order, **options))
