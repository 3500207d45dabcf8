"""Logits or probabilities as given, converted to the other on request."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import Kind
from calibrant.example_stats import (
    Chunk,
    ExampleStats,
    Scale,
    TopLabelStats,
    compute_example_stats,
    exponentials,
    map_chunks,
    top_label_error,
)
from calibrant.shapes import Index, Labels, Logits

T = TypeVar("T")

# A given probability of zero, if nothing better is known: the smallest normal float32.
SMALLEST = torch.finfo(torch.float32).tiny
# A replaced zero is at most this part of the smallest other probability: the order stays.
BELOW = 0.9


@dataclass(frozen=True, eq=False)
class Scores:
    """(n, k) scores as the user gave them, their kind, and what replaces a probability of 0."""

    values: Logits
    kind: Kind
    zero_floor: float | None = None

    def __post_init__(self) -> None:
        if self.zero_floor is not None and not 0 < self.zero_floor < 1:
            raise ValueError(f"zero_floor must lie between 0 and 1, got {self.zero_floor}")
        if self.zero_floor is not None and self.kind == "logits":
            raise ValueError("zero_floor is for probabilities, got logits: -inf masks a class")

    @property
    def logits(self) -> Logits:
        """Logits, (n, k); the log of the probabilities if those were given.

        A probability of 0 may have been rounded and becomes a finite logit; a logit of -inf masks
        the class and stays.
        """
        if self.kind == "logits":
            return self.values
        return without_zeros(self.values.log(), self.zero_floor or SMALLEST)

    @property
    def zero_probs(self) -> int:
        """How many probabilities were given as exactly 0."""
        return int((self.values == 0).sum()) if self.kind == "probs" else 0

    def estimated_floor(self, labels: Labels, weights: np.ndarray) -> float | None:
        """Estimate the probability of a class that was given 0; see `Predictions`."""
        if self.kind != "probs" or self.zero_floor is not None:
            return self.zero_floor
        zero = self.values == 0
        hit = zero.gather(1, labels[:, None])[:, 0].numpy()
        zeros = float(weights @ zero.sum(1).numpy())
        least = float(self.values.masked_fill(zero, torch.inf).min())
        return min((float(weights[hit].sum()) + 0.5) / (zeros + 1), BELOW * least)

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
        """Apply `work` to chunks of rows; see `Predictions.map_scaled`."""
        given = self.values.numpy()

        def of_chunk(part: slice) -> T:
            if self.kind == "probs":
                return work(part, given[part], np.ones(len(given[part]), dtype=given.dtype))
            return work(part, *exponentials(given[part], best[part]))

        return map_chunks(of_chunk, self.values)

    def example_stats(self, labels: Labels) -> ExampleStats:
        """Compute the statistics of each example that metrics need."""
        return compute_example_stats(self.values, labels, are_probs=self.kind == "probs")

    def relabelled_stats(self, stats: ExampleStats, labels: Labels) -> ExampleStats:
        """Update the statistics for other labels, without a pass over all classes."""
        at, best, truth = np.arange(len(labels)), stats.predicted.numpy(), labels.numpy()
        given, confidence = self.values.numpy(), stats.confidence.numpy()
        own = given[at, truth].astype(np.float64)
        with np.errstate(divide="ignore"):
            log_own = (
                np.log(own) if self.kind == "probs" else own - given[at, best] + np.log(confidence)
            )
        label_prob = own if self.kind == "probs" else np.exp(log_own)
        return replace(
            stats,
            label_prob=torch.from_numpy(label_prob),
            label_log_prob=torch.from_numpy(log_own),
        )

    def take(self, index: Tensor) -> "Scores":
        """Return the examples at `index`."""
        return replace(self, values=self.values[index])


class TopLabelScores(Scores):
    """(n, 1) confidences of the predicted class; the other probabilities are not known."""

    @property
    def logits(self) -> Logits:
        """Not known."""
        raise top_label_error("logits")

    @property
    def log_probs(self) -> Logits:
        """Not known."""
        raise top_label_error("log-probabilities")

    def probs(self, best: Index) -> Logits:
        """Not known."""
        raise top_label_error("probabilities")

    def map_scaled(self, work: Callable[[slice, Chunk, Scale], T], best: Index) -> Iterator[T]:
        """Not known."""
        raise top_label_error("probabilities")

    def example_stats(self, labels: Labels) -> ExampleStats:
        """The confidence; class 0 stands for the predicted one."""
        return TopLabelStats(torch.zeros_like(labels), self.values[:, 0])

    def relabelled_stats(self, stats: ExampleStats, labels: Labels) -> ExampleStats:
        """The same: no statistic depends on the label."""
        return stats


def without_zeros(logits: Logits, floor: float) -> Logits:
    """Replace -inf by the log of a probability, below every finite logit of its row."""
    zero = logits.isneginf()
    if not bool(zero.any()):
        return logits
    least = logits.masked_fill(zero, torch.inf).min(1, keepdim=True).values + math.log(BELOW)
    return torch.where(zero, least.clamp(max=math.log(floor)), logits)


def fingerprint(*arrays: Tensor | None) -> str:
    """SHA-256 of the values, dtypes and shapes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()
