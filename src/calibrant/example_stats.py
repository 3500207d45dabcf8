"""Statistics of each example that metrics need, from one pass over the logits.

Plain threads process the chunks, each with single-threaded numpy: unlike in a parallel operation
of torch, a thread that waits for its core does not block the others.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.shapes import Index, Labels, Logits, PerExample

# Elements a chunk may hold: one chunk of probabilities stays in a core's cache.
CHUNK = 1 << 19
# Up to this many classes a running sum in float32 is as good as a pairwise one.
SHORT = 4096
# Up to this highest logit, exp(z) and the sum of squares stay within float32.
SAFE = 30.0

T = TypeVar("T")
Chunk = Float[np.ndarray, "n k"]
Scale = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class ExampleStats:
    """Per example: predicted class, its probability, that of the label, and the sum of p^2.

    Accuracy, NLL, Brier score and all top-label calibration errors are functions of these.
    All but `predicted` are float64.
    """

    predicted: Labels
    confidence: PerExample
    label_prob: PerExample
    label_log_prob: PerExample
    squared_norm: PerExample

    def take(self, index: Tensor) -> "ExampleStats":
        """Return the statistics of the examples at `index`."""
        return ExampleStats(
            self.predicted[index],
            self.confidence[index],
            self.label_prob[index],
            self.label_log_prob[index],
            self.squared_norm[index],
        )


class TopLabelStats(ExampleStats):
    """Statistics where only the confidence of the predicted class is known."""

    def __init__(self, predicted: Labels, confidence: PerExample) -> None:
        object.__setattr__(self, "predicted", predicted)
        object.__setattr__(self, "confidence", confidence)

    @property
    def label_prob(self) -> PerExample:
        """Not known."""
        raise top_label_error("the probability of the label")

    @property
    def label_log_prob(self) -> PerExample:
        """Not known."""
        raise top_label_error("the probability of the label")

    @property
    def squared_norm(self) -> PerExample:
        """Not known."""
        raise top_label_error("the probabilities of all classes")

    def take(self, index: Tensor) -> "TopLabelStats":
        """Return the statistics of the examples at `index`."""
        return TopLabelStats(self.predicted[index], self.confidence[index])


def top_label_error(what: str) -> ValueError:
    """The error of something that needs more than the confidence."""
    return ValueError(
        f"this needs {what}, but only the confidence of the predicted class is known; "
        "use the logits or probabilities of all classes"
    )


def map_chunks(work: Callable[[slice], T], scores: Logits, *, elements: int = CHUNK) -> Iterator[T]:
    """Apply `work` to slices of rows that fit in cache; yields results in the order of the rows.

    Pass fewer `elements` if `work` allocates several arrays of the size of a chunk.
    """
    step = max(1, elements // scores.shape[1])
    parts = [slice(start, start + step) for start in range(0, len(scores), step)]
    workers = min(len(parts), torch.get_num_threads())
    if workers == 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, parts)


def compute_example_stats(scores: Logits, labels: Labels, *, are_probs: bool) -> ExampleStats:
    """Compute the statistics in chunks; nothing of size (n, k) is allocated.

    The confidence is NaN where a row holds NaN, or -inf only.
    """
    given, truth = scores.numpy(), labels.numpy()
    predicted = np.empty(len(given), dtype=np.int64)
    found = np.empty((4, len(given)))

    def fill(part: slice) -> None:
        make = _stats_of_probs if are_probs else _stats_of_logits
        # inf - inf is NaN, which marks an invalid row; the log of 0 is -inf.
        with np.errstate(invalid="ignore", divide="ignore"):
            predicted[part], *found[:, part] = make(given[part], truth[part])

    for _ in map_chunks(fill, scores):
        pass
    return ExampleStats(torch.from_numpy(predicted), *torch.from_numpy(found))


def exponentials(scores: Chunk, best: Index) -> tuple[Chunk, Scale]:
    """Return exp(z - s) and its sum over the classes; their ratio is the probability.

    The shift s is the highest logit of a row (that of class `best`), or 0 where exp cannot
    overflow. It depends on the row alone, so results do not depend on the chunks.
    """
    top = scores[np.arange(len(scores)), best]
    shift = np.where(np.abs(top) <= SAFE, 0, top).astype(scores.dtype)
    if shift.any():
        with np.errstate(over="ignore"):
            shifted = scores - shift[:, None]
        np.exp(shifted, out=shifted)
    else:
        shifted = np.exp(scores)
    # For short rows a plain running sum is many times faster than numpy's pairwise one.
    total = np.einsum("nk->n", shifted) if shifted.shape[1] <= SHORT else shifted.sum(1)
    return shifted, total


def _stats_of_logits(scores: Chunk, labels: Index) -> tuple[np.ndarray, ...]:
    best = scores.argmax(1)
    shifted, total = exponentials(scores, best)
    at = np.arange(len(scores))
    confidence = (shifted[at, best] / total).astype(np.float64)
    # A difference of logits cannot underflow, the probability of the label can.
    gap = scores[at, labels].astype(np.float64) - scores[at, best]
    return (
        best,
        confidence,
        shifted[at, labels] / total,
        gap + np.log(confidence),
        np.einsum("nk,nk->n", shifted, shifted) / total.astype(np.float64) ** 2,
    )


def _stats_of_probs(probs: Chunk, labels: Index) -> tuple[np.ndarray, ...]:
    at = np.arange(len(probs))
    best, own = probs.argmax(1), probs[at, labels]
    log_own = np.log(own.astype(np.float64))
    return best, probs[at, best], own, log_own, np.einsum("nk,nk->n", probs, probs)
