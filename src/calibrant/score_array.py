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

# The logit of a given probability of zero: log of the smallest normal float32.
LOG_ZERO = math.log(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, eq=False)
class Scores:
    """(n, k) scores as the user gave them, and their kind."""

    values: Logits
    kind: Kind

    @property
    def logits(self) -> Logits:
        """Logits, (n, k); the log of the probabilities if those were given.

        A probability of 0 may have been rounded and becomes a finite logit; a logit of -inf masks
        the class and stays.
        """
        return self.values if self.kind == "logits" else without_zeros(self.values.log())

    @property
    def zero_probs(self) -> int:
        """How many probabilities were given as exactly 0."""
        return int((self.values == 0).sum()) if self.kind == "probs" else 0

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


def without_zeros(logits: Logits) -> Logits:
    """Replace -inf by the logit of the smallest probability of float32.

    It lies below every finite logit of its row, which preserves the order of the classes.
    """
    zero = logits.isneginf()
    if not bool(zero.any()):
        return logits
    top = logits.max(1, keepdim=True).values
    least = logits.masked_fill(zero, torch.inf).min(1, keepdim=True).values
    return torch.where(zero, torch.minimum(top + LOG_ZERO, least), logits)


def fingerprint(*arrays: Tensor | None) -> str:
    """SHA-256 of the values, dtypes and shapes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()
