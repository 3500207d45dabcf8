"""Images with a label for each pixel."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from calibrant.data.finding import first, first_with, masked_images
from calibrant.data.folders import SUFFIXES, Size, decoded, is_image
from calibrant.data.images import resized_masks
from calibrant.data.options import height_and_width
from calibrant.data.source import Part, Source, numbered_classes
from calibrant.files.checks import listed
from calibrant.shapes import Index

CAMVID_NAMES: tuple[str, ...] = ("Sky", "Building", "Pole", "Road", "Pavement", "Tree")
CAMVID_NAMES += ("SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist")
VOID = 11


def camvid(folders: list[Path], *, size: Size = None) -> Source:
    """CamVid, street scenes of 11 classes; pixels labelled 11 are ignored.

    Folders train, trainannot, val, valannot, test, testannot of png files; or the npz file, whose
    val becomes test (it has no other), and val is taken from train.
    """
    base = first_with(folders, ["CamVid", "camvid", "."], "trainannot")
    if base is not None:
        pairs = [(base / role, base / f"{role}annot") for role in ("train", "test", "val")]
        train, test, val = (_pairs(*pair, size, len(CAMVID_NAMES), VOID) for pair in pairs)
        if train is None or test is None:
            raise ValueError(f"{base} must have images in train/ and test/, with masks in *annot/")
        return Source(train, test, val, CAMVID_NAMES, VOID)
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

    Without a test folder val becomes test; without both a fifth of train becomes test.

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
    train, val, test = (
        _pairs(base / role / "images", base / role / "masks", size, len(names), ignore_index)
        for role in ("train", "val", "test")
    )
    if train is None:
        raise ValueError(f"{base / 'train'} has no images; supported: {', '.join(SUFFIXES)}")
    if test is None:
        val, test = None, val
    return Source(train, test, val, names, ignore_index)


def _pairs(
    images: Path, masks: Path, size: Size, classes: int, ignore_index: int | None
) -> Part | None:
    """Images and masks whose names are equal except for the suffix."""
    if not images.is_dir():
        return None
    image_files, labels = _by_stem(images), _by_stem(masks)
    unpaired = sorted(image_files.keys() ^ labels.keys())
    if unpaired:
        raise ValueError(
            f"each image of {images} needs a mask in {masks}; unpaired: {listed(unpaired)}"
        )
    if not image_files:
        return None
    stems = sorted(image_files)

    def inputs(index: Index) -> Tensor:
        return decoded([image_files[stems[i]] for i in index], "RGB", size)

    def targets(index: Index) -> Tensor:
        paths = [labels[stems[i]] for i in index]
        return torch.cat([_mask(path, size, classes, ignore_index) for path in paths])

    return Part(torch.zeros(len(stems), dtype=torch.int64), inputs, masks=targets)


def _mask(path: Path, size: Size, classes: int, ignore_index: int | None) -> Tensor:
    mask = resized_masks(decoded([path], "mask")[:, 0], height_and_width(size)).short()
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
    if not folder.is_dir():
        return {}
    found: dict[str, Path] = {}
    for path in sorted(filter(is_image, folder.iterdir())):
        if path.stem in found:
            raise ValueError(f"{folder} has two images called {path.stem!r}; keep one")
        found[path.stem] = path
    return found
