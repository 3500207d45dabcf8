"""Random changes of training inputs: whole batches at once, and repeatable."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from calibrant.data.hashing import uniform
from calibrant.data.splits import Batch, Split
from calibrant.data.text import PAD, UNKNOWN
from calibrant.setting_errors import SettingError
from calibrant.shapes import Index

# Names of the random numbers of an example in an epoch.
ROW, COLUMN, FLIP, PARTNER, SHARE, WORD = range(6)


@dataclass(frozen=True)
class Augmentation:
    r"""Shift, mirror and mix images; leave words out.

    Every random number is a function of seed, epoch and the example's position in the split, so
    what happens to it does not depend on which others share its batch.

    With mixup $x' = s\,x + (1 - s)\,\tilde x$, $s \sim \mathrm{Beta}(mixup, mixup)$, where
    $\tilde x$ is any example of the split, shifted and mirrored as it is on its own in that epoch.

    Attributes:
        crop: pads by so many black pixels on each side and cuts back to size anywhere in it.
        flip: mirrors half of the images, left to right.
        mixup: parameter of the Beta distribution; 0 mixes nothing.
        word_dropout: chance of each word of a text to become the unknown one.

    References:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018, arXiv:1710.09412.
    """

    crop: int = 0
    flip: bool = False
    mixup: float = 0.0
    word_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise SettingError("crop", f"must be at least 0 pixels, got {self.crop}")
        if not 0 <= self.mixup < math.inf:
            raise SettingError("mixup", f"must be at least 0 and finite, got {self.mixup}")
        if not 0 <= self.word_dropout < 1:
            raise SettingError("word_dropout", f"must lie in [0, 1), got {self.word_dropout}")

    def __call__(
        self, split: Split, index: Tensor, *, seed: int, epoch: int, ignore_index: int | None = None
    ) -> Batch:
        """Return the changed examples at `index`, ready for the network.

        Args:
            split: usually train.
            index: positions in it.
            seed: at least 0.
            epoch: at least 0.
            ignore_index: masks that are cropped: the label of the pixels from outside the image.
        """
        self._check(split, ignore_index)
        if self.word_dropout:
            return self._dropped(split, index, seed, epoch)
        batch = self._moved(split, index, seed, epoch, ignore_index)
        if not self.mixup:
            return batch
        at = index.numpy()
        partner = torch.from_numpy((uniform(seed, epoch, PARTNER, at) * len(split)).astype("i8"))
        chance = special.betaincinv(self.mixup, self.mixup, uniform(seed, epoch, SHARE, at))
        share = torch.from_numpy(chance.astype("f4"))
        other = self._moved(split, partner, seed, epoch, ignore_index)
        weight = share.view(-1, *[1] * (batch.inputs.ndim - 1))
        return replace(
            batch,
            inputs=other.inputs.lerp(batch.inputs, weight),
            other_labels=other.labels,
            share=share,
        )

    def _check(self, split: Split, ignore_index: int | None) -> None:
        tokens = not split.inputs.is_floating_point() and split.scale is None
        if (self.crop or self.flip) and split.inputs.ndim != 4:
            raise ValueError(
                f"crop and flip are for images, inputs here are {tuple(split.inputs.shape[1:])}; "
                f"use Augmentation({'word_dropout' if tokens else 'mixup'}=...) or none"
            )
        if self.word_dropout and not tokens:
            raise ValueError("word_dropout is for text, these inputs are no token numbers")
        if self.mixup and tokens:
            raise ValueError("mixup is for images and vectors, token numbers cannot be mixed")
        if self.mixup and split.labels.ndim > 1:
            raise ValueError("mixup is for whole images, masks cannot be mixed")
        if self.crop and self.crop >= min(split.inputs.shape[2:]):
            raise ValueError(
                f"crop must be less than the size of the images, {tuple(split.inputs.shape[2:])}; "
                f"got {self.crop}"
            )
        if self.crop and split.labels.ndim > 1 and ignore_index is None:
            raise ValueError("cropped masks need ignore_index, the label of pixels from outside")

    def _dropped(self, split: Split, index: Tensor, seed: int, epoch: int) -> Batch:
        """Make some words unknown."""
        batch = split.batch(index)
        words = batch.inputs.numpy()
        place = index.numpy()[:, None] * words.shape[1] + np.arange(words.shape[1])
        chance = uniform(seed, epoch, WORD, place.ravel()).reshape(words.shape)
        dropped = (chance < self.word_dropout) & (words != PAD)
        return replace(batch, inputs=torch.from_numpy(np.where(dropped, UNKNOWN, words)))

    def _moved(
        self, split: Split, index: Tensor, seed: int, epoch: int, ignore_index: int | None
    ) -> Batch:
        """Shift and mirror."""
        if not (self.crop or self.flip):
            return split.batch(index)
        # One thread of numpy: for so few bytes several of torch cost more than they save.
        at = index.numpy()
        images, labels = split.inputs.numpy()[at], split.labels.numpy()[at]
        dense = labels.ndim > 1
        if self.crop:
            span = 2 * self.crop + 1
            down, right = (
                (uniform(seed, epoch, draw, at) * span).astype(np.int64) for draw in (ROW, COLUMN)
            )
            images = _cropped(images, self.crop, down, right, 0)
            if dense and ignore_index is not None:
                labels = _cropped(labels[:, None], self.crop, down, right, ignore_index)[:, 0]
        if self.flip:
            mirrored = np.flatnonzero(uniform(seed, epoch, FLIP, at) < 0.5)
            images[mirrored] = images[mirrored][..., ::-1]
            if dense:
                labels[mirrored] = labels[mirrored][..., ::-1]
        return Batch(split.ready(torch.from_numpy(images)), torch.from_numpy(labels).long(), index)


def _cropped(images: NDArray[Any], pad: int, down: Index, right: Index, fill: int) -> NDArray[Any]:
    """Cut (n, c, h, w) out of the padded images, each at its own place."""
    n, channels, height, width = images.shape
    padded = np.full((n, channels, height + 2 * pad, width + 2 * pad), fill, dtype=images.dtype)
    padded[:, :, pad:-pad, pad:-pad] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    picked: NDArray[Any] = windows[np.arange(n), :, down, right]
    return picked
