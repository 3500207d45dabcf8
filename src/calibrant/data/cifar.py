"""CIFAR-10 and CIFAR-100, from the batches of their authors or from npz files."""

import lzma
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import files
from calibrant.data.images import checked_labels
from calibrant.data.options import check_names
from calibrant.data.pickled import unpickled
from calibrant.data.source import (
    Part,
    Source,
    counts_to_posterior,
    first,
    first_with,
    in_memory,
    labelled_images,
    numbered_classes,
    read_bytes,
)
from calibrant.files.checks import check_file, one_line
from calibrant.files.checks import human as human_size

CIFAR10_NAMES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CIFAR10_NAMES += ("dog", "frog", "horse", "ship", "truck")
MAX_BYTES = 512 * 2**20
# Zeros at the end of a tar archive: 20 blocks of 512 bytes, or a few times that.
MAX_PADDING = 2**20
# Which array of the CIFAR-10N file, and which column of it.
HUMAN_LABELS: dict[str, tuple[str, int | None]] = {
    "worse": ("worse", None),
    "aggregate": ("aggregate", None),
    "random1": ("labels3", 0),
    "random2": ("labels3", 1),
    "random3": ("labels3", 2),
}


def cifar10(folders: list[Path], *, human: bool = False, label_noise: float | str = 0.0) -> Source:
    """CIFAR-10, optionally with the human labels of CIFAR-10H (test) and CIFAR-10N (train).

    Args:
        folders: to search.
        human: test has the frequencies of human labels as its `posterior`; from the npz file.
        label_noise: a fraction, or human labels for train: 'worse', 'aggregate', 'random1',
            'random2', 'random3'; from the npz files. Val and test stay clean.

    References:
        Peterson et al., Human uncertainty makes classification more robust, ICCV 2019.
        Wei et al., Learning with Noisy Labels Revisited, ICLR 2022, arXiv:2110.12088.
    """
    named = isinstance(label_noise, str)
    if named:
        check_names("label_noise of cifar10", [str(label_noise)], tuple(HUMAN_LABELS))
    if not (human or named):
        train = [f"data_batch_{i}" for i in range(1, 6)]
        parts = _batches(folders, "cifar-10-batches-py", "cifar-10-python.tar.gz", train, 10)
        if parts:
            return Source(*parts, class_names=CIFAR10_NAMES)
    path = first(folders, ["cifar10_A.npz", "cifar10.npz"])
    if path is None:
        expected = "cifar10_A.npz" if human or named else "cifar-10-batches-py or cifar10_A.npz"
        raise FileNotFoundError(f"no {expected}")
    train_part, test = (labelled_images(path, split, 10) for split in ("train", "test"))
    if human:
        posterior = counts_to_posterior(path, "human_counts_test", len(test), 10)
        test = replace(test, posterior=posterior)
    noisy = _human_labels(folders, str(label_noise), train_part.labels) if named else None
    return Source(train_part, test, class_names=CIFAR10_NAMES, noisy=noisy)


def cifar100(folders: list[Path]) -> Source:
    """CIFAR-100 with its fine labels."""
    place, archive = "cifar-100-python", "cifar-100-python.tar.gz"
    parts = _batches(folders, place, archive, ["train"], 100, "test", b"fine_labels")
    if parts:
        return Source(*parts, class_names=_fine_names(folders, place, archive))
    path = first(folders, ["cifar100.npz"])
    if path is None:
        raise FileNotFoundError(f"no {place}, {archive} or cifar100.npz")
    train, test = (labelled_images(path, split, 100) for split in ("train", "test"))
    return Source(train, test, class_names=numbered_classes(100))


def _batches(
    folders: Sequence[Path],
    place: str,
    archive: str,
    train: Sequence[str],
    classes: int,
    test: str = "test_batch",
    labels: bytes = b"labels",
) -> tuple[Part, Part] | None:
    """Train and test from the folder of batches or its archive; None if neither exists."""
    contents = _contents(folders, place, archive, [*train, test])
    if contents is None:
        return None
    read = [_batch(path, content, labels, classes) for path, content in contents.items()]
    images, targets = (torch.cat(parts) for parts in zip(*read[:-1], strict=True))
    return in_memory(images, targets), in_memory(*read[-1])


def _contents(
    folders: Sequence[Path], place: str, archive: str, names: Sequence[str]
) -> Mapping[Path, bytes] | None:
    folder = first_with(folders, [place, "."], names[0])
    if folder is not None:
        return {folder / name: read_bytes(folder / name, MAX_BYTES) for name in names}
    packed = first(folders, [archive])
    return None if packed is None else _unpacked(packed, place, names)


def _unpacked(archive: Path, place: str, names: Sequence[str]) -> dict[Path, bytes]:
    """Members of the archive, read in one pass without writing to disk."""
    members = {f"{place}/{name}": archive / name for name in names}
    found: dict[Path, bytes] = {}
    check_file(archive)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.name in members and member.isreg():
                    if member.size > MAX_BYTES:
                        raise ValueError(f"{members[member.name]} has {human_size(member.size)}")
                    stream = tar.extractfile(member)
                    found[members[member.name]] = b"" if stream is None else stream.read()
            # The checksum of a gzip file follows the padding of the archive: read to the end.
            if tar.fileobj is not None and len(tar.fileobj.read(MAX_PADDING)) == MAX_PADDING:
                raise tarfile.ReadError("data after the end of the archive")
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{archive} is not a complete tar archive: {one_line(error)}") from None
    missing = [path.name for path in members.values() if path not in found]
    if missing:
        raise ValueError(f"{archive} has no {place}/{missing[0]}")
    return {path: found[path] for path in members.values()}


def _batch(path: Path, content: bytes, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    held = unpickled(path, content)
    data = held.get(b"data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
        raise ValueError(f"{path}: 'data' must be uint8 (n, 3072), got {_shown(data)}")
    name, labels = key.decode(), held.get(key)
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{path}: {name!r} must be a list of integers, got {_shown(labels)}")
    images = torch.from_numpy(data.reshape(-1, 3, 32, 32).copy())
    try:
        numbers = np.array(labels, dtype=np.int64)
    except OverflowError:
        raise ValueError(f"{path}: {name!r} must lie in [0, {classes - 1}]") from None
    return images, checked_labels(path, name, numbers, len(images), classes)


def _fine_names(folders: Sequence[Path], place: str, archive: str) -> tuple[str, ...]:
    """Names of the 100 classes, or numbers if the file of names is missing."""
    try:
        contents = _contents(folders, place, archive, ["meta"])
    except ValueError:
        return numbered_classes(100)
    for path, content in (contents or {}).items():
        names = unpickled(path, content).get(b"fine_label_names")
        if isinstance(names, list) and len(names) == 100:
            texts = tuple(
                one_line(n.decode("latin-1") if isinstance(n, bytes) else n, 60) for n in names
            )
            if len(set(texts)) == 100:
                return texts
        raise ValueError(f"{path}: 'fine_label_names' must be 100 different names")
    return numbered_classes(100)


def _human_labels(folders: Sequence[Path], which: str, clean: Tensor) -> Tensor:
    """CIFAR-10N labels of the images of the npz file."""
    path = first(folders, ["cifar10n_A.npz"])
    if path is None:
        raise FileNotFoundError("no cifar10n_A.npz, the labels of CIFAR-10N")
    name, column = HUMAN_LABELS[which]
    arrays = files.read(path, [name, "clean"])
    if not np.array_equal(arrays["clean"], clean.numpy()):
        raise ValueError(f"{path} is for other images: its 'clean' labels are not those of train")
    labels = arrays[name] if column is None else arrays[name].reshape(len(clean), -1)[:, column]
    return checked_labels(path, name, labels, len(clean), 10)


def _shown(value: Any) -> str:
    return str(getattr(value, "shape", None) or type(value).__name__)
