"""What every metric needs of each example, from one pass over the logits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.shapes import Labels, Logits, PerExample

# Elements a chunk may hold: one chunk of probabilities stays in a core's cache.
CHUNK = 1 << 18


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


def chunks(scores: Logits) -> Iterator[slice]:
    """Slices of rows that fit in cache, in order."""
    step = max(1, CHUNK // scores.shape[1])
    return (slice(start, start + step) for start in range(0, len(scores), step))


def rows_of(scores: Logits, labels: Labels, *, are_probs: bool) -> Rows:
    """One chunked pass over logits (or probabilities); nothing of size (n, k) is allocated.

    A NaN in a row makes its confidence NaN, and so does a row of nothing but -inf.
    """
    predicted = _argmax(scores)
    best, label = predicted[:, None], labels[:, None].long()
    columns = torch.cat([best, label], 1)
    picked = scores.new_empty(len(scores), 2)
    norm = scores.new_empty(len(scores))
    for part in chunks(scores):
        probs = scores[part] if are_probs else torch.softmax(scores[part], 1)
        torch.gather(probs, 1, columns[part], out=picked[part])
        torch.linalg.vector_norm(probs, dim=1, out=norm[part])
    confidence, label_prob = picked.T.double().contiguous()
    if are_probs:
        label_log_prob = label_prob.log()
    else:
        # The gap of two logits cannot underflow as the label's own probability can.
        top, own = scores.gather(1, columns).T.double().contiguous()
        label_log_prob = own - top + confidence.log()
    return Rows(predicted, confidence, label_prob, label_log_prob, norm.double().square())


def _argmax(scores: Logits) -> Labels:
    """First class of the highest score; numpy's argmax is vectorised where torch's is not."""
    array = scores.numpy()
    workers = torch.get_num_threads()
    if array.size < CHUNK or workers == 1:
        return torch.from_numpy(array.argmax(1))
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda part: part.argmax(1), np.array_split(array, workers * 4))
        return torch.from_numpy(np.concatenate(list(parts)))
