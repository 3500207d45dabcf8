"""What a dataset is to the rest of the package: four disjoint splits, each tensors in memory."""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.strata import Purpose, stratified_order

Kind = Literal["images", "masks", "text", "vectors"]

JOBS = {
    "train": "the weights are learnt on it",
    "meta": "what a method learns beside the weights is learnt on it; cut from train when asked",
    "val": "choices are made on it: when to stop, multipliers, which calibrator and its numbers",
    "test": "measured once, at the end; nothing is chosen by it",
}


@dataclass(frozen=True)
class Scale:
    """How stored images become network inputs: (x / 255 - mean) / std for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Turn uint8 images (n, c, h, w) into float32 network inputs."""
        # One multiplication and one addition for each pixel; the numbers are worked out once.
        pairs = list(zip(self.mean, self.std, strict=True))
        factor = images.new_tensor([[[1 / (255 * s)]] for _, s in pairs], dtype=torch.float32)
        shift = images.new_tensor([[[-m / s]] for m, s in pairs], dtype=torch.float32)
        return images.float().mul_(factor).add_(shift)


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples ready for the network.

    Attributes:
        inputs: float32 images (n, c, h, w) or vectors (n, d), int64 tokens (n, length).
        labels: int64 (n,), or masks (n, h, w).
        index: int64 (n,), positions in the split.
        other_labels: with mixup, the labels of the image that was mixed in.
        share: with mixup, the weight (n,) of `labels`; the rest belongs to `other_labels`.
    """

    inputs: Tensor
    labels: Tensor
    index: Tensor
    other_labels: Tensor | None = None
    share: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: slice) -> "Batch":
        """Return some of the examples."""
        return Batch(
            self.inputs[rows],
            self.labels[rows],
            self.index[rows],
            None if self.other_labels is None else self.other_labels[rows],
            None if self.share is None else self.share[rows],
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Examples as they are stored.

    Attributes:
        inputs: uint8 images (n, c, h, w), int64 tokens (n, length) or float32 vectors (n, d).
        labels: int64 (n,), or int16 masks (n, h, w).
        rows: int64 (n,), where each example stood in its source, which is numbered through: train
            first, then a val of its own, then test. No row is in two splits.
        scale: for images, what makes network inputs of them.
        posterior: (n, k) true or human class probabilities, where known; it speaks of the clean
            labels, whatever noise was asked for.
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
        # Whole examples are copied, twenty times as fast as by self.inputs[index].
        inputs, labels = self.inputs.index_select(0, index), self.labels.index_select(0, index)
        return Batch(self.ready(inputs), labels.long(), index)

    def ready(self, inputs: Tensor) -> Tensor:
        """Scale stored images; tokens and vectors are ready as they are."""
        return inputs if self.scale is None else self.scale(inputs)


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset, cut: what each split is for is in `JOBS`.

    Attributes:
        name: as in `DATASETS`.
        kind: what the inputs are.
        train: for the weights; the only split that `long_tail` and `label_noise` touch.
        val: for choices.
        test: for the final measurement.
        meta: for what a method learns beside the weights; see `with_meta`.
        class_names: one for each class.
        vocabulary: text: the number of token ids (0 pads, 1 is unknown).
        ignore_index: masks: the label that does not count.
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
        """Number of classes, also of those that never occur."""
        if self.class_names:
            return len(self.class_names)
        labels = torch.cat([part.labels.flatten().long() for part in self._parts().values()])
        if self.ignore_index is not None:
            labels = labels[labels != self.ignore_index]
        return int(labels.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one network input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def class_counts(self) -> Tensor:
        """Training examples (or pixels that count) of each class, (k,)."""
        labels = self.train.labels.flatten().long()
        if self.ignore_index is not None:
            labels = labels[labels != self.ignore_index]
        return torch.bincount(labels, minlength=self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the name and all tensors, in hexadecimal: equal data have equal ones."""
        digest = hashlib.sha256(f"{self.name} {self.kind} {self.class_names}".encode())
        digest.update(f"{self.vocabulary} {self.ignore_index}".encode())
        for job, part in self._parts().items():
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, Tensor):
                    digest.update(f"{job} {field.name} {value.dtype} {value.shape}".encode())
                    digest.update(value.contiguous().numpy().data)
                else:
                    digest.update(f"{job} {field.name} {value}".encode())
        return digest.hexdigest()

    def with_meta(self, fraction: float, *, seed: int) -> "Splits":
        """Cut a meta split from train, in proportion to its classes; val and test stay.

        The labels of meta are those of train, with their noise and their long tail.
        """
        if self.meta is not None:
            raise ValueError(f"{self.name} has a meta split of {len(self.meta)} examples already")
        if not 0 < fraction < 1:
            raise ValueError(
                f"meta, the part set aside, must lie strictly between 0 and 1, got {fraction}"
            )
        count = round(fraction * len(self.train))
        if not 0 < count < len(self.train):
            raise ValueError(
                f"a fraction of {fraction} of {len(self.train)} examples leaves one side empty"
            )
        labels = self.train.labels
        strata = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
        order = stratified_order(strata, seed, Purpose.META)
        meta, train = (torch.from_numpy(np.sort(o)) for o in (order[:count], order[count:]))
        return replace(self, train=self.train.take(train), meta=self.train.take(meta))

    def _parts(self) -> dict[str, Split]:
        found = {job: getattr(self, job) for job in JOBS}
        return {job: part for job, part in found.items() if part is not None}
