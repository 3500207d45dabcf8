"""Logits or probabilities, whichever was given, and the other one when asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import Kind
from calibrant.rows import Chunk, Rows, Scale, exponentials, map_chunks, rows_of
from calibrant.shapes import Index, Labels, Logits

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Scores:
    """(n, k) numbers as the user gave them, and what they are."""

    values: Logits
    kind: Kind

    @property
    def logits(self) -> Logits:
        """Logits, (n, k); the log of the probabilities if those were given."""
        return self.values if self.kind == "logits" else self.values.log()

    @property
    def log_probs(self) -> Logits:
        """Log-probabilities, (n, k)."""
        return torch.log_softmax(self.values, 1) if self.kind == "logits" else self.values.log()

    def probs(self, best: Index) -> Logits:
        """Probabilities, (n, k), given the most probable classes."""
        if self.kind == "probs":
            return self.values
        probs = torch.empty_like(self.values)

        def fill(part: slice, scaled: Chunk, total: Scale) -> None:
            np.divide(scaled, total[:, None], out=probs.numpy()[part])

        for _ in self.map_scaled(fill, best):
            pass
        return probs

    def map_scaled(self, work: Callable[[slice, Chunk, Scale], T], best: Index) -> Iterator[T]:
        """Apply `work` to a few rows at a time; see `Predictions.map_scaled`."""
        given = self.values.numpy()

        def of_chunk(part: slice) -> T:
            if self.kind == "probs":
                return work(part, given[part], np.ones(len(given[part]), dtype=given.dtype))
            scaled, total, _ = exponentials(given[part], best[part])
            return work(part, scaled, total)

        return map_chunks(of_chunk, self.values)

    def rows(self, labels: Labels) -> Rows:
        """What metrics need of each example."""
        return rows_of(self.values, labels, are_probs=self.kind == "probs")

    def take(self, index: Tensor) -> "Scores":
        """Return the examples at `index`."""
        return Scores(self.values[index], self.kind)
