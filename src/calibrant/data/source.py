"""The result of a dataset reader: labels in memory, inputs read only for selected examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.splits import Kind
from calibrant.shapes import Index


@dataclass(frozen=True, eq=False)
class Part:
    """One split as the source provides it.

    Attributes:
        labels: int64 (n,); zeros for masks, which are not stratified.
        inputs: positions -> uint8 images (m, c, h, w), float32 vectors (m, d) or a list of m texts;
            only selected examples are decoded.
        masks: positions -> int16 masks (m, h, w), if those are the labels.
        posterior: (n, k), if known.
    """

    labels: Tensor
    inputs: Callable[[Index], Any]
    masks: Callable[[Index], Tensor] | None = None
    posterior: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset before it is split.

    Attributes:
        train: source of train, and of val if there is no val.
        test: None means a fifth of train, the same for every seed.
        val: the source's own val split, if it has one.
        class_names: one per class.
        ignore_index: for masks.
        noisy: (n,) noisy labels of train, if requested by name.
        length: text: default number of tokens of a document.
        kind: of the inputs, for a reader of several kinds.
    """

    train: Part
    test: Part | None
    val: Part | None = None
    class_names: tuple[str, ...] = ()
    ignore_index: int | None = None
    noisy: Tensor | None = None
    length: int = 256
    kind: Kind | None = None


def in_memory(inputs: Tensor, labels: Tensor, posterior: Tensor | None = None) -> Part:
    """A part whose inputs are in memory."""
    return Part(
        labels.long(),
        lambda index: inputs.index_select(0, torch.from_numpy(index)),
        posterior=posterior,
    )


def texts_in_memory(texts: list[str], labels: np.ndarray | list[int]) -> Part:
    """A part whose documents are in memory."""
    numbers = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Part(numbers, lambda index: [texts[i] for i in index])


def numbered_classes(classes: int) -> tuple[str, ...]:
    """Class names "class 0", "class 1", ..."""
    return tuple(f"class {i}" for i in range(classes))
