"""Datasets in memory: disjoint splits for training, meta-learning, validation and testing."""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.strata import Purpose, stratified_order

Kind = Literal["images", "masks", "text", "vectors"]

ROLES = {
    "train": "the weights are learnt on it",
    "meta": "method state (auxiliary parameters) is learnt on it; taken from train on request",
    "val": "choices are made on it: early stopping, multipliers, the calibrator and its parameters",
    "test": "measured once, at the end; nothing is chosen by it",
}


@dataclass(frozen=True)
class Scale:
    """Normalisation of stored images: (x / 255 - mean) / std for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 images (n, c, h, w) to float32 network inputs."""
        # One multiplication and one addition per pixel.
        pairs = list(zip(self.mean, self.std, strict=True))
        factor = images.new_tensor([[[1 / (255 * s)]] for _, s in pairs], dtype=torch.float32)
        offset = images.new_tensor([[[-m / s]] for m, s in pairs], dtype=torch.float32)
        return images.float().mul_(factor).add_(offset)


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples ready for the network.

    Attributes:
        inputs: float32 images (n, c, h, w) or vectors (n, d), int64 tokens (n, length).
        labels: int64 (n,), or masks (n, h, w).
        index: int64 (n,), positions in the split.
        other_labels: with mixup, the labels of the second image.
        share: with mixup, the weight (n,) of `labels`; that of `other_labels` is 1 - share.
    """

    inputs: Tensor
    labels: Tensor
    index: Tensor
    other_labels: Tensor | None = None
    share: Tensor | None = None

    @classmethod
    def of(cls, inputs: Tensor, labels: Tensor) -> "Batch":
        """A batch of a loop that has no split: positions are those in the batch.

        >>> len(Batch.of(torch.zeros(2, 3), torch.tensor([0, 1])))
        2
        """
        return cls(inputs, labels, torch.arange(len(labels), device=labels.device))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, part: slice) -> "Batch":
        """Return a slice of the examples."""
        other, share = (
            None if each is None else each[part] for each in (self.other_labels, self.share)
        )
        return Batch(self.inputs[part], self.labels[part], self.index[part], other, share)


@dataclass(frozen=True, eq=False)
class Split:
    """Stored examples.

    Attributes:
        inputs: uint8 images (n, c, h, w), int64 tokens (n, length) or float32 vectors (n, d).
        labels: int64 (n,), or int16 masks (n, h, w).
        rows: int64 (n,), row number of each example in its source, which is numbered through: train
            first, then its own val, then test. No row is in two splits.
        scale: for images, their normalisation.
        posterior: (n, k) true or human class probabilities of the clean labels, if known.
    """

    inputs: Tensor
    labels: Tensor
    rows: Tensor
    scale: Scale | None = None
    posterior: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor) -> "Split":
        """Return the examples at these positions."""
        return replace(
            self,
            inputs=self.inputs[index],
            labels=self.labels[index],
            rows=self.rows[index],
            posterior=None if self.posterior is None else self.posterior[index],
        )

    def batch(self, index: Tensor) -> Batch:
        """Return the examples at these positions, ready for the network."""
        # index_select is twenty times as fast as self.inputs[index] here.
        inputs, labels = self.inputs.index_select(0, index), self.labels.index_select(0, index)
        return Batch(self.ready(inputs), labels.long(), index)

    def ready(self, inputs: Tensor) -> Tensor:
        """Normalise stored images; tokens and vectors are returned unchanged."""
        return inputs if self.scale is None else self.scale(inputs)


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset in splits, whose roles are in `ROLES`.

    Attributes:
        name: as in `DATASETS`.
        kind: kind of the inputs.
        train: for the weights; the only split that `long_tail` and `label_noise` affect.
        val: for choices.
        test: for the final evaluation.
        meta: for method state; see `with_meta`.
        class_names: one per class.
        vocabulary: text: the number of token ids (0 pads, 1 is unknown).
        ignore_index: masks: the label of ignored pixels.
    """

    name: str
    kind: Kind
    train: Split
    val: Split
    test: Split
    meta: Split | None = None
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None
    ignore_index: int | None = None

    @property
    def classes(self) -> int:
        """Number of classes, including those that do not occur."""
        if self.class_names:
            return len(self.class_names)
        labels = torch.cat([self._labels(part) for part in self._parts().values()])
        return int(labels.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one network input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def class_counts(self) -> Tensor:
        """Training examples (or valid pixels) of each class, (k,)."""
        return torch.bincount(self._labels(self.train), minlength=self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of the name and all tensors: equal for equal data."""
        digest = hashlib.sha256(f"{self.name} {self.kind} {self.class_names}".encode())
        digest.update(f"{self.vocabulary} {self.ignore_index}".encode())
        for role, part in self._parts().items():
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, Tensor):
                    digest.update(f"{role} {field.name} {value.dtype} {value.shape}".encode())
                    digest.update(value.contiguous().numpy().data)
                else:
                    digest.update(f"{role} {field.name} {value}".encode())
        return digest.hexdigest()

    def with_meta(self, fraction: float, *, seed: int) -> "Splits":
        """Take a meta split from train, stratified by class; val and test stay the same.

        The labels of meta are those of train, including noise and long tail.
        """
        if self.meta is not None:
            raise ValueError(f"{self.name} has a meta split of {len(self.meta)} examples already")
        if not 0 < fraction < 1:
            raise ValueError(
                f"meta, the held-out fraction, must lie strictly between 0 and 1, got {fraction}"
            )
        count = round(fraction * len(self.train))
        if not 0 < count < len(self.train):
            raise ValueError(
                f"a fraction of {fraction} of {len(self.train)} examples leaves a split empty"
            )
        labels = self.train.labels
        strata = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
        order = stratified_order(strata, seed, Purpose.META)
        meta, train = (torch.from_numpy(np.sort(o)) for o in (order[:count], order[count:]))
        return replace(self, train=self.train.take(train), meta=self.train.take(meta))

    def _labels(self, part: Split) -> Tensor:
        """Valid labels of examples or pixels."""
        labels = part.labels.flatten().long()
        return labels if self.ignore_index is None else labels[labels != self.ignore_index]

    def _parts(self) -> dict[str, Split]:
        found = {role: getattr(self, role) for role in ROLES}
        return {role: part for role, part in found.items() if part is not None}
