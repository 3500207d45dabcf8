"""MNIST and Fashion-MNIST: idx files, plain or compressed, or npz files."""

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.images import checked_labels
from calibrant.data.source import Part, Source, first, first_with, in_memory, labelled_images
from calibrant.files.checks import Limits, check_file, check_size, one_line

# Debian's package dataset-fashion-mnist puts its files here.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
LIMITS = Limits(max_bytes=4 * 2**30, max_expansion=200.0)
FASHION_NAMES: tuple[str, ...] = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat")
FASHION_NAMES += ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def mnist(folders: list[Path]) -> Source:
    """Handwritten digits of 28 x 28 pixels."""
    return _source(folders, ["mnist", "MNIST/raw", "MNIST"], "mnist.npz", tuple("0123456789"))


def fashion_mnist(folders: list[Path]) -> Source:
    """Clothes of 28 x 28 pixels."""
    places = ["fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"]
    return _source([*folders, DEBIAN], places, "fashion_mnist.npz", FASHION_NAMES)


def _source(
    folders: Sequence[Path], places: Sequence[str], npz: str, names: tuple[str, ...]
) -> Source:
    path = first(folders, [npz])
    if path is not None:
        train, test = (labelled_images(path, split, 10) for split in ("train", "test"))
        return Source(train, test, class_names=names)
    for ending in ("", ".gz"):
        folder = first_with(folders, [*places, "."], f"train-images-idx3-ubyte{ending}")
        if folder is not None:
            train, test = (_part(folder, split, ending) for split in ("train", "t10k"))
            return Source(train, test, class_names=names)
    raise FileNotFoundError(f"no train-images-idx3-ubyte, the same with .gz, or {npz}")


def _part(folder: Path, split: str, ending: str) -> Part:
    images_at = folder / f"{split}-images-idx3-ubyte{ending}"
    labels_at = folder / f"{split}-labels-idx1-ubyte{ending}"
    images = torch.from_numpy(read_idx(images_at, dimensions=3))[:, None]
    labels = checked_labels(labels_at, "labels", read_idx(labels_at, dimensions=1), len(images), 10)
    return in_memory(images, labels)


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: zero, zero, type 8, dimensions, then sizes in 32 bits each."""
    check_file(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            return _array(path, stream.read, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a complete gzip file: {one_line(error)}") from None


def _array(path: Path, read: Callable[[int], bytes], dimensions: int) -> NDArray[np.uint8]:
    head = read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(
            f"{path} is not an idx file of uint8 with {dimensions} dimensions: "
            f"it begins with {head[:4].hex(' ') or 'nothing'}"
        )
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    check_size(path, "the array", size, path.stat().st_size, LIMITS)
    # One byte more than declared, to detect trailing data.
    content = read(size + 1)
    if len(content) != size or not size:
        held = f"more than {size}" if len(content) > size else str(len(content))
        raise ValueError(f"{path} declares {shape}, {size} bytes, but has {held}")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)
