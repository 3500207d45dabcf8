"""What every metric needs of each example, from one pass over the logits.

Chunks are worked on by plain threads, each running single-threaded numpy: unlike a parallel
operation inside torch, a thread that has to wait for its core does not hold up the other.
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
# Up to here exp(z) of a row's highest logit, and the sum of squares, stay within float32.
SAFE = 30.0

T = TypeVar("T")
Chunk = Float[np.ndarray, "n k"]
Scale = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Rows:
    """Per example: the predicted class and its probability, the label's, and the sum of p^2.

    Accuracy, NLL, Brier score and every top-label calibration error follow from these.
    All but `predicted` are float64.
    """

    predicted: Labels
    confidence: PerExample
    label_prob: PerExample
    label_log_prob: PerExample
    squared_norm: PerExample

    def take(self, index: Tensor) -> "Rows":
        """Return the rows at `index`."""
        return Rows(
            self.predicted[index],
            self.confidence[index],
            self.label_prob[index],
            self.label_log_prob[index],
            self.squared_norm[index],
        )


def map_chunks(work: Callable[[slice], T], scores: Logits, *, elements: int = CHUNK) -> Iterator[T]:
    """Apply `work` to slices of rows that fit in cache; results in the order of the rows.

    They come one by one: a caller that adds them up never holds more than a few. Work that makes
    several arrays of a chunk's size asks for fewer `elements`.
    """
    step = max(1, elements // scores.shape[1])
    parts = [slice(start, start + step) for start in range(0, len(scores), step)]
    workers = min(len(parts), torch.get_num_threads())
    if workers == 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, parts)


def rows_of(scores: Logits, labels: Labels, *, are_probs: bool) -> Rows:
    """One chunked pass over logits (or probabilities); nothing of size (n, k) is allocated.

    A NaN in a row makes its confidence NaN, and so does a row of nothing but -inf.
    """
    given, truth = scores.numpy(), labels.numpy()
    predicted = np.empty(len(given), dtype=np.int64)
    found = np.empty((4, len(given)))

    def fill(part: slice) -> None:
        make = _rows_of_probs if are_probs else _rows_of_logits
        # inf - inf is NaN, which marks a row that has to be refused; the log of 0 is -inf.
        with np.errstate(invalid="ignore", divide="ignore"):
            predicted[part], *found[:, part] = make(given[part], truth[part])

    for _ in map_chunks(fill, scores):
        pass
    confidence, label_prob, label_log_prob, squared_norm = torch.from_numpy(found)
    return Rows(torch.from_numpy(predicted), confidence, label_prob, label_log_prob, squared_norm)


def exponentials(scores: Chunk, best: Index) -> tuple[Chunk, Scale]:
    """Return exp(z - s) and its sum over the classes, given the class of the highest logit.

    The first divided by the second are the probabilities. The shift s is the highest logit of a
    row, or nothing where exp cannot overflow without it; it depends on the row alone, so the
    numbers do not depend on which rows share a chunk.
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


def _rows_of_logits(scores: Chunk, labels: Index) -> tuple[np.ndarray, ...]:
    best = scores.argmax(1)
    shifted, total = exponentials(scores, best)
    at = np.arange(len(scores))
    confidence = (shifted[at, best] / total).astype(np.float64)
    # The gap of two logits cannot underflow as the label's own probability can.
    gap = scores[at, labels].astype(np.float64) - scores[at, best]
    return (
        best,
        confidence,
        shifted[at, labels] / total,
        gap + np.log(confidence),
        np.einsum("nk,nk->n", shifted, shifted) / total.astype(np.float64) ** 2,
    )


def _rows_of_probs(probs: Chunk, labels: Index) -> tuple[np.ndarray, ...]:
    at = np.arange(len(probs))
    best, own = probs.argmax(1), probs[at, labels]
    log_own = np.log(own.astype(np.float64))
    return best, probs[at, best], own, log_own, np.einsum("nk,nk->n", probs, probs)
