"""Images in folders named after their class, or with a mask for each; only selected ones are read.

Without a test folder val becomes test; without both a fifth of train becomes test.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.images import check_bytes, resized, resized_masks
from calibrant.data.options import Size, height_and_width
from calibrant.data.source import (
    Part,
    Source,
    first,
    first_with,
    masked_images,
    numbered_classes,
    read_bytes,
)
from calibrant.extras import need
from calibrant.files.checks import listed, one_line
from calibrant.shapes import Index

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Most pixels of one image: a small file can declare a huge image.
MAX_PIXELS = 100_000_000
MAX_ANNOTATIONS = 64 * 2**20
CAMVID_NAMES: tuple[str, ...] = ("Sky", "Building", "Pole", "Road", "Pavement", "Tree")
CAMVID_NAMES += ("SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist")
VOID = 11

Mode = Literal["RGB", "mask"]


def image_folder(folders: list[Path], *, size: Size = None) -> Source:
    """Images in `train/<class>/`, and optionally in `val/<class>/` and `test/<class>/`."""
    base = first_with(folders, [".", "image_folder"], "train")
    if base is None:
        raise FileNotFoundError("no folder train/ with a folder of images for each class")
    names = _folders(base / "train")
    if len(names) < 2:
        raise ValueError(f"{base / 'train'} must have a folder for each class, got {listed(names)}")

    def part(folder: Path) -> Part | None:
        unknown = sorted({*_folders(folder)} - {*names})
        if unknown:
            raise ValueError(f"{folder} has classes that train does not have: {listed(unknown)}")
        files = [(path, i) for i, name in enumerate(names) for path in _images(folder / name)]
        return _labelled(files, size)

    return _source(base, part, names)


def tiny_imagenet(folders: list[Path], *, size: Size = None) -> Source:
    """Tiny ImageNet; its labelled val split becomes test, and val is taken from train."""
    roots = [".", "tiny-imagenet-200", "tiny_imagenet"]
    base = first_with(folders, roots, "val/val_annotations.txt")
    if base is None:
        raise FileNotFoundError("no tiny-imagenet-200 with val/val_annotations.txt")
    names = tuple(name for name in _folders(base / "train") if name.startswith("n"))
    number = {name: i for i, name in enumerate(names)}
    places = [base / "train" / name / "images" for name in names]
    files = [(path, i) for i, place in enumerate(places) for path in _images(place)]
    annotations = base / "val" / "val_annotations.txt"
    text = read_bytes(annotations, MAX_ANNOTATIONS).decode("utf-8", "replace")
    held_out = []
    for line, entry in enumerate(text.splitlines(), 1):
        name, _, rest = entry.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in number or Path(name).name != name:
            raise ValueError(f"{annotations}: line {line} must be an image and a class of train/")
        held_out.append((annotations.parent / "images" / name, number[wnid]))
    train, test = _labelled(files, size), _labelled(held_out, size)
    if train is None or test is None:
        raise ValueError(f"{base} has {len(files)} images in train/ and {len(held_out)} in val/")
    return Source(train, test, class_names=names)


def camvid(folders: list[Path], *, size: Size = None) -> Source:
    """CamVid, street scenes of 11 classes; pixels labelled 11 are ignored.

    Folders train, trainannot, val, valannot, test, testannot of png files; or the npz file, whose
    val becomes test (it has no other), and val is taken from train.
    """
    base = first_with(folders, ["CamVid", "camvid", "."], "trainannot")
    if base is not None:

        def part(folder: Path) -> Part | None:
            masks = folder.with_name(f"{folder.name}annot")
            return _pairs(folder, masks, size, len(CAMVID_NAMES), VOID)

        source = _source(base, part, CAMVID_NAMES, VOID)
        if source.test is None:
            raise ValueError(f"{base} must have images in test/, with masks in testannot/")
        return source
    path = first(folders, ["camvid_A_trainval.npz", "camvid.npz"])
    if path is None:
        raise FileNotFoundError("no CamVid/trainannot or camvid_A_trainval.npz")
    train, test = (masked_images(path, split) for split in ("train", "val"))
    return Source(train, test, None, CAMVID_NAMES, VOID)


def mask_folder(
    folders: list[Path],
    *,
    classes: int | Sequence[str] = 0,
    ignore_index: int | None = None,
    size: Size = None,
) -> Source:
    """Images in `train/images/` with masks of the same names in `train/masks/`; also val, test.

    Args:
        folders: to search.
        classes: their number, or their names; masks contain class numbers from 0.
        ignore_index: the label of ignored pixels, such as 255.
        size: see `Options`.
    """
    base = first_with(folders, [".", "mask_folder"], "train/masks")
    if base is None:
        raise FileNotFoundError("no folder train/ with images/ and masks/ in it")
    names = numbered_classes(classes) if isinstance(classes, int) else tuple(classes)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"mask_folder needs classes=..., at least 2 or their names, got {classes}")

    def part(folder: Path) -> Part | None:
        return _pairs(folder / "images", folder / "masks", size, len(names), ignore_index)

    return _source(base, part, names, ignore_index)


def stacked(images: Iterable[tuple[object, Tensor]], count: int, size: Size = None) -> Tensor:
    """Stack (source, image) pairs of (c, h, w) images, resized to `size` or all of one size."""
    target = height_and_width(size)
    result = torch.empty(0)
    example: object = None
    for position, (where, given) in enumerate(images):
        image = resized(given[None], target)[0]
        if position == 0:
            example = where
            check_bytes(str(where), image.numel() * count)
            result = torch.empty((count, *image.shape), dtype=torch.uint8)
        if image.shape != result.shape[1:]:
            (height, width), (others, other) = image.shape[1:], result.shape[2:]
            raise ValueError(
                f"{where} is {width} x {height}, {example} is {other} x {others}; "
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


def _source(
    base: Path,
    part: Callable[[Path], Part | None],
    names: tuple[str, ...],
    ignore_index: int | None = None,
) -> Source:
    """Train, val and test in folders of these names; only train must have images."""
    train, val, test = (part(base / role) for role in ("train", "val", "test"))
    if train is None:
        raise ValueError(f"{base / 'train'} has no images; supported: {', '.join(SUFFIXES)}")
    return Source(train, test, val, names, ignore_index)


def _decoded(paths: Sequence[Path], mode: Mode, size: Size = None) -> Tensor:
    """Read image files as uint8 (n, c, h, w)."""
    library = need("PIL.Image", extra="images", what="reading image files")
    return stacked(((path, _opened(library, path, mode)) for path in paths), len(paths), size)


def _opened(library: Any, path: Path, mode: Mode) -> Tensor:
    try:
        with library.open(path) as image:
            return pixels(image, mode)
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {path}") from None
    except Exception as error:
        # Decoders fail in many ways on damaged files.
        raise ValueError(f"{path} is not a readable image: {one_line(error)}") from None


def _folders(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def _images(folder: Path) -> list[Path]:
    """Image files of a folder, if it exists; only regular files: reading a pipe could block."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in found if path.is_file())


def _labelled(files: Sequence[tuple[Path, int]], size: Size) -> Part | None:
    """Images with their classes; None if there are none."""
    if not files:
        return None
    paths, labels = zip(*files, strict=True)
    return Part(
        torch.tensor(labels), lambda index: _decoded([paths[i] for i in index], "RGB", size)
    )


def _pairs(
    images: Path, masks: Path, size: Size, classes: int, ignore_index: int | None
) -> Part | None:
    """Images and masks whose names are equal except for the suffix; None if there are none."""
    if not images.is_dir():
        return None
    image_files, mask_files = _by_stem(images), _by_stem(masks)
    unpaired = sorted(image_files.keys() ^ mask_files.keys())
    if unpaired:
        raise ValueError(
            f"each image of {images} needs a mask in {masks}; unpaired: {listed(unpaired)}"
        )
    if not image_files:
        return None
    stems = sorted(image_files)

    def inputs(index: Index) -> Tensor:
        return _decoded([image_files[stems[i]] for i in index], "RGB", size)

    def targets(index: Index) -> Tensor:
        paths = [mask_files[stems[i]] for i in index]
        return torch.cat([_mask(path, size, classes, ignore_index) for path in paths])

    return Part(torch.zeros(len(stems), dtype=torch.int64), inputs, masks=targets)


def _mask(path: Path, size: Size, classes: int, ignore_index: int | None) -> Tensor:
    mask = resized_masks(_decoded([path], "mask")[:, 0], height_and_width(size)).short()
    wrong = mask >= classes
    if ignore_index is not None:
        wrong &= mask != ignore_index
    if wrong.any():
        raise ValueError(
            f"{path}: labels must lie in [0, {classes - 1}] or be ignore_index={ignore_index}, "
            f"got {int(mask[wrong][0])}"
        )
    return mask


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _images(folder):
        if path.stem in found:
            raise ValueError(f"{folder} has two images called {path.stem!r}; keep one")
        found[path.stem] = path
    return found
