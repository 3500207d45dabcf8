"""What dataset readers return, and how they find and read their files.

Labels are in memory; inputs are read only for selected examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import files
from calibrant.data.images import checked_labels, from_channels_last
from calibrant.data.splits import Kind
from calibrant.files.checks import check_file, human
from calibrant.shapes import Index

# Largest size of the text of a split in an npz file.
MAX_TEXT = 4 * 2**30


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
        test: without it val becomes test; without both a fifth of train, the same for every seed.
        val: the source's own val split, if it has one.
        class_names: one per class.
        ignore_index: for masks.
        noisy: (n,) noisy labels of train, if requested by name.
        length: text: default number of tokens of a document.
        kind: kind of the inputs, for a reader of several kinds.
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


def numbered_classes(classes: int) -> tuple[str, ...]:
    """Class names "class 0", "class 1", ..."""
    return tuple(f"class {i}" for i in range(classes))


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


def read_bytes(path: Path, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes."""
    check_file(path)
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{path} has {human(size)}, more than {human(limit)}")
    return path.read_bytes()


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
