"""Resizing, normalisation and checks of stored images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from calibrant.data.splits import Scale
from calibrant.files.checks import human

CHUNK = 512
# Most memory for the images of one split.
MAX_BYTES = 64 * 2**30


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Resize uint8 images (n, c, h, w), bilinear with antialiasing, a chunk at a time."""
    if size is None or tuple(images.shape[2:]) == size:
        return images
    result = torch.empty((*images.shape[:2], *size), dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK].float()
        scaled = F.interpolate(part, size=size, mode="bilinear", antialias=True)
        result[start : start + CHUNK] = scaled.round_().clamp_(0, 255)
    return result


def resized_masks(masks: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Resize masks (n, h, w) by nearest neighbour."""
    if size is None or tuple(masks.shape[1:]) == size:
        return masks
    rows, columns = (
        ((torch.arange(new) + 0.5) * (old / new)).long().clamp_(max=old - 1)
        for new, old in zip(size, masks.shape[1:], strict=True)
    )
    return masks[:, rows][:, :, columns]


def scale_of(images: Tensor) -> Scale:
    """Mean and standard deviation of each channel, from exact integer sums."""
    pixels = images.numpy()
    values = np.arange(256)
    means, stds = [], []
    for channel in range(images.shape[1]):
        # A histogram suffices; one thread, because several stall on a busy machine.
        counts = np.zeros(256, dtype=np.int64)
        for start in range(0, len(pixels), CHUNK):
            part = pixels[start : start + CHUNK, channel]
            counts += np.bincount(part.ravel(), minlength=256)
        # Python integers do not overflow: the subtraction is exact.
        count, total = int(counts.sum()), int(counts @ values)
        variance = (count * int(counts @ values**2) - total * total) / (count * count)
        means.append(total / count / 255)
        # A constant channel is not rescaled.
        stds.append(variance**0.5 / 255 or 1.0)
    return Scale(tuple(means), tuple(stds))


def check_bytes(where: str, size: int) -> None:
    """Raise for images that exceed the memory limit, before they are read."""
    if size > MAX_BYTES:
        raise ValueError(
            f"{where}: the images take {human(size)}, more than {human(MAX_BYTES)}; "
            "pass a smaller size=... or limit=..."
        )


def from_channels_last(path: Path, name: str, array: NDArray[Any]) -> Tensor:
    """Check uint8 images (n, h, w) or (n, h, w, c); return (n, c, h, w)."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in array.shape:
        raise ValueError(
            f"{path}: {name!r} must be uint8 images (n, h, w) or (n, h, w, c), "
            f"got {array.dtype} {array.shape}"
        )
    images = torch.from_numpy(array)
    return images[:, None] if array.ndim == 3 else images.movedim(3, 1).contiguous()


def checked_labels(path: Path, name: str, array: NDArray[Any], n: int, k: int) -> Tensor:
    """Check n class numbers below k; return int64."""
    if array.dtype.kind not in "iu" or array.shape != (n,):
        raise ValueError(f"{path}: {name!r} must be {n} integers, got {array.dtype} {array.shape}")
    labels = torch.from_numpy(array.astype(np.int64))
    if n and not (labels.min() >= 0 and labels.max() < k):
        bad = int(labels[(labels < 0) | (labels >= k)][0])
        raise ValueError(f"{path}: {name!r} must lie in [0, {k - 1}], got {bad}")
    return labels
