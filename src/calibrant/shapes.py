"""Array types of the package: n examples, k classes, b bins."""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

Logits = Float[Tensor, "n k"]
Labels = Int[Tensor, " n"]
LabelMatrix = Int[Tensor, "n k"]  # of several labels, -1 where one is not known
PerExample = Float[Tensor, " n"]
Scalar = Float[Tensor, ""]

# Metrics need no autograd, and sums per bin are faster in numpy.
Values = Float64[np.ndarray, " n"]
Index = Int64[np.ndarray, " n"]
PerBin = Float64[np.ndarray, "... b"]
PerClass = Float64[np.ndarray, " k"]


def flatten_dense(
    logits: Float[Tensor, "n k ..."], labels: Int[Tensor, "n ..."], *, ignore_index: int | None
) -> tuple[Float[Tensor, "m k"], Int[Tensor, " m"], Int[Tensor, " m"]]:
    """Flatten pixels or tokens to examples: (n, k, ...) -> (m, k).

    Labels may have an axis of length 1 in place of that of the classes. Positions whose label is
    `ignore_index` are dropped. The third result is the index of the image
    of each example, for resampling by image.
    """
    if logits.ndim < 3:
        raise ValueError(
            f"dense logits must be (n, k, ...) with 3 axes or more, got {shape(logits)}"
        )
    expected = (logits.shape[0], *logits.shape[2:])
    if labels.shape == (expected[0], 1, *expected[1:]):
        labels = labels[:, 0]
    if labels.shape != expected:
        raise ValueError(
            f"dense labels must be {expected} to match logits {shape(logits)}, got {shape(labels)}"
        )
    positions = labels[0].numel() if len(labels) else 0
    image = torch.arange(len(labels), device=labels.device).repeat_interleave(positions)
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    flat = labels.reshape(-1)
    if ignore_index is None:
        return rows, flat, image
    keep = flat != ignore_index
    return rows[keep], flat[keep], image[keep]


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor as a tuple, for messages."""
    return tuple(tensor.shape)
