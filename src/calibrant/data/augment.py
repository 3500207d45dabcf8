"""Reproducible data augmentation of whole batches."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from calibrant.data.splits import Batch, Split
from calibrant.data.text_sets import PAD, UNKNOWN
from calibrant.losses.settings import at_least
from calibrant.setting_errors import SettingError
from calibrant.shapes import Index, Values

# Indices of the random numbers of an example in an epoch.
ROW, COLUMN, FLIP, PARTNER, SHARE, WORD = range(6)


@dataclass(frozen=True)
class Augmentation:
    r"""Random crops, flips and mixup of images; word dropout of text.

    Every random number is a function of seed, epoch and the example's position in the split, so
    the result does not depend on the other examples of the batch.

    With mixup $x' = s\,x + (1 - s)\,\tilde x$, $s \sim \mathrm{Beta}(mixup, mixup)$, where
    $\tilde x$ is any example of the split, cropped and flipped as it is itself in that epoch.

    Attributes:
        crop: padding in black pixels on each side, before cropping at a random position.
        flip: flips half of the images horizontally.
        mixup: parameter of the Beta distribution; 0 disables mixup.
        word_dropout: probability of each word to be replaced by the unknown token.

    References:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018, arXiv:1710.09412.
    """

    crop: int = 0
    flip: bool = False
    mixup: float = 0.0
    word_dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least("crop", 0, self.crop)
        at_least("mixup", 0, self.mixup)
        if not 0 <= self.word_dropout < 1:
            raise SettingError("word_dropout", f"must lie in [0, 1), got {self.word_dropout}")

    def __call__(
        self, split: Split, index: Tensor, *, seed: int, epoch: int, ignore_index: int | None = None
    ) -> Batch:
        """Return the augmented examples at `index`, ready for the network.

        `ignore_index` is the label of pixels outside the image, for cropped masks.
        """
        self._check(split, ignore_index)
        if self.word_dropout:
            return self._drop_words(split, index, seed, epoch)
        batch = self._crop_and_flip(split, index, seed, epoch, ignore_index)
        if not self.mixup:
            return batch
        at = index.numpy()
        partner = torch.from_numpy((uniform(seed, epoch, PARTNER, at) * len(split)).astype("i8"))
        chance = special.betaincinv(self.mixup, self.mixup, uniform(seed, epoch, SHARE, at))
        share = torch.from_numpy(chance.astype("f4"))
        other = self._crop_and_flip(split, partner, seed, epoch, ignore_index)
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
            raise ValueError("word_dropout is for text, these inputs are not token ids")
        if self.mixup and tokens:
            raise ValueError("mixup is for images and vectors, not for token ids")
        if self.mixup and split.labels.ndim > 1:
            raise ValueError("mixup is for whole images, not for masks")
        if self.crop and self.crop >= min(split.inputs.shape[2:]):
            raise ValueError(
                f"crop must be less than the size of the images, {tuple(split.inputs.shape[2:])}; "
                f"got {self.crop}"
            )
        if self.crop and split.labels.ndim > 1 and ignore_index is None:
            raise ValueError("cropped masks need ignore_index, the label of pixels outside")

    def _drop_words(self, split: Split, index: Tensor, seed: int, epoch: int) -> Batch:
        batch = split.batch(index)
        words = batch.inputs.numpy()
        place = index.numpy()[:, None] * words.shape[1] + np.arange(words.shape[1])
        chance = uniform(seed, epoch, WORD, place.ravel()).reshape(words.shape)
        dropped = (chance < self.word_dropout) & (words != PAD)
        return replace(batch, inputs=torch.from_numpy(np.where(dropped, UNKNOWN, words)))

    def _crop_and_flip(
        self, split: Split, index: Tensor, seed: int, epoch: int, ignore_index: int | None
    ) -> Batch:
        if not (self.crop or self.flip):
            return split.batch(index)
        # Numpy in one thread: for so few bytes torch's threads cost more than they save.
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
            flipped = np.flatnonzero(uniform(seed, epoch, FLIP, at) < 0.5)
            images[flipped] = images[flipped][..., ::-1]
            if dense:
                labels[flipped] = labels[flipped][..., ::-1]
        return Batch(split.ready(torch.from_numpy(images)), torch.from_numpy(labels).long(), index)


def _cropped(images: NDArray[Any], pad: int, down: Index, right: Index, fill: int) -> NDArray[Any]:
    """Crop (n, c, h, w) from the padded images, each at its own position."""
    n, channels, height, width = images.shape
    padded = np.full((n, channels, height + 2 * pad, width + 2 * pad), fill, dtype=images.dtype)
    padded[:, :, pad:-pad, pad:-pad] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    picked: NDArray[Any] = windows[np.arange(n), :, down, right]
    return picked


def uniform(seed: int, epoch: int, draw: int, index: Index) -> Values:
    """One number in [0, 1) per example, independent of the other examples of the call.

    Each of the four arguments passes through SplitMix64's mixing step.

    References:
        Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in (seed, epoch, draw):
        key = _hash(key ^ np.uint64(part))
    bits = _hash(_hash(key ^ index.astype(np.uint64)))
    return (bits >> 11) * 2.0**-53


def _hash(key: NDArray[Any]) -> NDArray[Any]:
    # Unsigned arrays wrap around on overflow, as intended.
    key = key + 0x9E3779B97F4A7C15
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    mixed: NDArray[Any] = key ^ (key >> 31)
    return mixed
