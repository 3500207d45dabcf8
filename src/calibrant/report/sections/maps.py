"""Where in an image a network is unsure, and where it is wrong."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from calibrant.predictions import Predictions
from calibrant.report.charts.png import grey_png
from calibrant.report.charts.svg import escape, plot
from calibrant.report.saved import Group, SavedCell
from calibrant.report.sections.panel import Panel, first_cells, plots

IMAGES, METHODS = 2, 6
# Grey of a right and of a wrong pixel: dark is bad, as it is for the confidence.
RIGHT, WRONG = 235, 25
# Pixels of a side; of larger images only every so many-th one is shown.
SIDE = 240


def maps(group: Group) -> Panel | None:
    """Confidence and errors of two images, method by method.

    Saved predictions are rows of pixels, without those that do not count. Where each pixel was is
    known only for images none of whose pixels were left out, and only if the record has the size
    that images were brought to; without both there is no panel.
    """
    figures = []
    for name, cell in list(first_cells(group).items())[:METHODS]:
        size = _size(cell)
        test = None if size is None else cell.test
        if size is not None and test is not None:
            figures += _of_images(name, test, size)
    if not figures:
        return None
    about = (
        "Test images of the first seed: left, dark pixels are unsure; right, dark pixels are "
        "wrong. A calibrated network is wrong where it is unsure."
    )
    return Panel("maps", "Maps of confidence and error", about, plots(figures))


def _size(cell: SavedCell) -> tuple[int, int] | None:
    """Height and width of all images, where the data were brought to one size."""
    size: Any = ((cell.record or {}).get("identity") or {}).get("dataset.size")
    if isinstance(size, int) and not isinstance(size, bool):
        size = [size, size]
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(n, int) for n in size):
        return None
    return (size[0], size[1]) if min(size) > 1 else None


def _of_images(name: str, test: Predictions, size: tuple[int, int]) -> list[str]:
    if test.groups is None:
        return []
    groups = test.groups.numpy()
    whole = np.flatnonzero(np.bincount(groups) == size[0] * size[1])[:IMAGES]
    figures = []
    for image in whole.tolist():
        at = np.flatnonzero(groups == image)
        confidence = test.confidence.numpy()[at].reshape(size)
        right = test.correct.numpy()[at].reshape(size) > 0
        words = f"image {image + 1}, {right.mean():.1%} of the pixels right"
        pictures = {
            "confidence": (255 * confidence).round().clip(0, 255).astype(np.uint8),
            "errors": np.where(right, RIGHT, WRONG).astype(np.uint8),
        }
        shown = [_picture(each, f"{what} of {name}, {words}") for what, each in pictures.items()]
        figures.append(plot(name, *shown, note=words))
    return figures


def _picture(pixels: UInt8[np.ndarray, "h w"], words: str) -> str:
    step = -(-max(pixels.shape) // SIDE)
    small = np.ascontiguousarray(pixels[::step, ::step])
    height, width = small.shape
    return (
        f'<img class="map" src="{grey_png(small)}" width="{width}" height="{height}" '
        f'alt="{escape(words)}" data-tip="{escape(words)}"/>'
    )
