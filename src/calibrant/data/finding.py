"""Find the files of a dataset, and read arrays of npz files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant import files
from calibrant.data.images import checked_labels, from_channels_last
from calibrant.data.source import Part, in_memory

# Largest size of the text of a split.
MAX_TEXT = 4 * 2**30


def first(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of these names that exists in one of the folders; '.' is the folder itself."""
    for folder in folders:
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


def first_with(folders: Sequence[Path], places: Sequence[str], needed: str) -> Path | None:
    """The first of these subfolders that contains the needed file or folder."""
    found = first(folders, [f"{place}/{needed}" for place in places])
    return None if found is None else found.parents[len(Path(needed).parts) - 1]


def labelled_images(path: Path, split: str, classes: int) -> Part:
    """Images `x_<split>` with classes `y_<split>` of an npz file."""
    names = [f"x_{split}", f"y_{split}"]
    x, y = files.read(path, names).values()
    images = from_channels_last(path, names[0], x)
    return in_memory(images, checked_labels(path, names[1], y, len(images), classes))


def labelled_texts(path: Path, split: str, classes: int) -> Part:
    """Documents of an npz file: `text_<split>` split at `offsets_<split>`; classes `y_<split>`."""
    names = [f"text_{split}", f"offsets_{split}", f"y_{split}"]
    text, offsets, y = files.read(path, names, max_bytes=MAX_TEXT).values()
    if text.dtype != np.uint8 or text.ndim != 1:
        raise ValueError(f"{path}: {names[0]!r} must be bytes (n,), got {text.dtype} {text.shape}")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(f"{path}: {names[1]!r} must be at least 2 integers")
    if offsets[0] != 0 or offsets[-1] != len(text) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"{path}: {names[1]!r} must increase from 0 to the text length {len(text)}"
        )
    labels = checked_labels(path, names[2], y, len(offsets) - 1, classes)
    whole, cuts = text.tobytes(), offsets.tolist()
    return Part(
        labels,
        lambda index: [whole[cuts[i] : cuts[i + 1]].decode("utf-8", "replace") for i in index],
    )


def masked_images(path: Path, split: str) -> Part:
    """Images `x_<split>` with masks `y_<split>` of an npz file."""
    names = [f"x_{split}", f"y_{split}"]
    x, y = files.read(path, names).values()
    images = from_channels_last(path, names[0], x)
    if y.dtype != np.uint8 or y.shape != x.shape[:3]:
        raise ValueError(
            f"{path}: {names[1]!r} must be uint8 masks {x.shape[:3]}, got {y.dtype} {y.shape}"
        )
    masks = torch.from_numpy(y)
    return Part(
        torch.zeros(len(images), dtype=torch.int64),
        lambda index: images[torch.from_numpy(index)],
        masks=lambda index: masks[torch.from_numpy(index)].short(),
    )


def counts_to_posterior(path: Path, name: str, n: int, k: int) -> Tensor:
    """Frequencies of human labels, (n, k), float64, from their counts."""
    counts = files.read(path, [name])[name]
    if counts.dtype.kind not in "iu" or counts.shape != (n, k) or (counts.sum(1) == 0).any():
        raise ValueError(
            f"{path}: {name!r} must be counts ({n}, {k}), at least one in each row, "
            f"got {counts.dtype} {counts.shape}"
        )
    shares = counts.astype(np.float64)
    return torch.from_numpy(shares / shares.sum(1, keepdims=True))
