"""What a reader hands over: labels now, inputs of whichever examples are kept later."""

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
    """One split as its source has it.

    Attributes:
        labels: int64 (n,); for masks zeros, as an image has no class to keep in proportion.
        inputs: positions -> uint8 images (m, c, h, w), float32 vectors (m, d) or a list of m texts;
            only what is kept is decoded.
        masks: positions -> int16 masks (m, h, w), if those are the labels.
        posterior: (n, k), where known.
    """

    labels: Tensor
    inputs: Callable[[Index], Any]
    masks: Callable[[Index], Tensor] | None = None
    posterior: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset before it is cut.

    Attributes:
        train: what train, and val if there is none, are cut from.
        test: if there is none, a fifth of train, the same for every seed.
        val: the source's own, if it has one.
        class_names: one for each class.
        ignore_index: for masks.
        noisy: (n,) other labels of train, if asked for by name.
        length: text: how many tokens of a document to keep, unless told.
        kind: what the inputs are, for a reader of several kinds.
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
    """A part whose inputs are read already."""
    return Part(
        labels.long(),
        lambda index: inputs.index_select(0, torch.from_numpy(index)),
        posterior=posterior,
    )


def texts_in_memory(texts: list[str], labels: np.ndarray | list[int]) -> Part:
    """A part whose documents are read already."""
    chosen = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Part(chosen, lambda index: [texts[i] for i in index])
