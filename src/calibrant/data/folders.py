"""Images in folders named after their class; only selected images are decoded."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.finding import first_with
from calibrant.data.images import check_bytes, resized
from calibrant.data.options import height_and_width
from calibrant.data.source import Part, Source
from calibrant.extras import need
from calibrant.files.checks import listed, one_line
from calibrant.shapes import Index

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Most pixels of one image: a small file can declare a huge image.
MAX_PIXELS = 100_000_000
MAX_ANNOTATIONS = 64 * 2**20

Size = int | Sequence[int] | None
Mode = Literal["RGB", "L", "mask"]


def image_folder(folders: list[Path], *, size: Size = None) -> Source:
    """Images in `train/<class>/`, and optionally in `val/<class>/` and `test/<class>/`.

    Without a test folder val becomes test; without both a fifth of train becomes test.
    """
    base = first_with(folders, [".", "image_folder"], "train")
    if base is None:
        raise FileNotFoundError("no folder train/ with a folder of images for each class")
    names = tuple(sorted(path.name for path in (base / "train").iterdir() if path.is_dir()))
    if len(names) < 2:
        raise ValueError(f"{base / 'train'} must have a folder for each class, got {listed(names)}")
    train, val, test = (_classes(base / role, names, size) for role in ("train", "val", "test"))
    if train is None:
        raise ValueError(f"{base / 'train'} has no images; supported: {', '.join(SUFFIXES)}")
    if test is None:
        val, test = None, val
    return Source(train, test, val, class_names=names)


def tiny_imagenet(folders: list[Path], *, size: Size = None) -> Source:
    """Tiny ImageNet; its labelled val split becomes test, and val is taken from train."""
    places = [".", "tiny-imagenet-200", "tiny_imagenet"]
    base = first_with(folders, places, "val/val_annotations.txt")
    if base is None:
        raise FileNotFoundError("no tiny-imagenet-200 with val/val_annotations.txt")
    names = tuple(sorted(path.name for path in (base / "train").glob("n*") if path.is_dir()))
    number = {name: i for i, name in enumerate(names)}
    files = [
        (path, number[name]) for name in names for path in _images(base / "train" / name / "images")
    ]
    annotations = base / "val" / "val_annotations.txt"
    if not annotations.is_file() or annotations.stat().st_size > MAX_ANNOTATIONS:
        raise ValueError(f"{annotations} is not a file, or too large for a list of images")
    held_out = []
    for line, text in enumerate(annotations.read_text("utf-8", "replace").splitlines(), 1):
        name, _, rest = text.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in number or Path(name).name != name:
            raise ValueError(f"{annotations}: line {line} must be an image and a class of train/")
        held_out.append((annotations.parent / "images" / name, number[wnid]))
    if not files or not held_out:
        raise ValueError(f"{base} has {len(files)} images in train/ and {len(held_out)} in val/")
    return Source(_part(files, size), _part(held_out, size), class_names=names)


def decoded(paths: Sequence[Path], mode: Mode, size: Size = None) -> Tensor:
    """Read image files as uint8 (n, c, h, w)."""
    library = need("PIL.Image", extra="images", what="reading image files")
    return stacked(((path, _opened(library, path, mode)) for path in paths), len(paths), size)


def stacked(images: Iterable[tuple[object, Tensor]], count: int, size: Size = None) -> Tensor:
    """Stack (source, image) pairs of (c, h, w) images, resized to `size` or all of one size."""
    target = height_and_width(size)
    result = torch.empty(0)
    first: object = None
    for position, (where, given) in enumerate(images):
        image = resized(given[None], target)[0]
        if position == 0:
            first = where
            check_bytes(str(where), image.numel() * count)
            result = torch.empty((count, *image.shape), dtype=torch.uint8)
        if image.shape != result.shape[1:]:
            (height, width), (others, other) = image.shape[1:], result.shape[2:]
            raise ValueError(
                f"{where} is {width} x {height}, {first} is {other} x {others}; "
                "pass size=... to resize all images"
            )
        result[position] = image
    return result


def pixels(image: Any, mode: Mode) -> Tensor:
    """Convert a Pillow image to uint8 (c, h, w); a mask keeps its class numbers."""
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"it declares {image.width} x {image.height} pixels")
    if mode == "mask" and image.mode not in ("1", "L", "P"):
        raise ValueError(f"a mask must have one channel, this one is {image.mode}")
    array = np.array(image if mode == "mask" else image.convert(mode)).astype(np.uint8, copy=False)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).movedim(2, 0)


def _opened(library: Any, path: Path, mode: Mode) -> Tensor:
    try:
        with library.open(path) as image:
            return pixels(image, mode)
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {path}") from None
    except Exception as error:
        # Decoders fail in many ways on damaged files.
        raise ValueError(f"{path} is not a readable image: {one_line(error)}") from None


def _classes(folder: Path, names: Sequence[str], size: Size) -> Part | None:
    if not folder.is_dir():
        return None
    unknown = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(names))
    if unknown:
        raise ValueError(f"{folder} has classes that train does not have: {listed(unknown)}")
    files = [(path, i) for i, name in enumerate(names) for path in _images(folder / name)]
    return _part(files, size) if files else None


def is_image(path: Path) -> bool:
    """Whether this is a regular file with an image suffix; reading a pipe could block."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(filter(is_image, folder.iterdir()))


def _part(files: Sequence[tuple[Path, int]], size: Size) -> Part:
    paths = [path for path, _ in files]

    def inputs(index: Index) -> Tensor:
        return decoded([paths[i] for i in index], "RGB", size)

    return Part(torch.tensor([label for _, label in files]), inputs)
