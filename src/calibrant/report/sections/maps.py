"""Confidence and errors of the pixels of test images."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from calibrant.predictions import Predictions
from calibrant.report.charts.svg import escape, plot, plots
from calibrant.report.saved import Group, SavedCell
from calibrant.report.sections.panel import Panel, first_cells

METHODS = 6
# Greys of pixels: dark is wrong, white is ignored.
RIGHT, WRONG, LEFT_OUT = 215, 25, 255
# Pixels of a side; of larger images only every so many-th one is shown.
SIDE = 240


def maps(group: Group) -> Panel | None:
    """Confidence and errors of the images whose valid pixels are recorded, by method."""
    figures = []
    for name, cell in list(first_cells(group).items())[:METHODS]:
        places = _places(cell)
        test = cell.test if places else None
        if test is None or test.groups is None:
            continue
        groups = test.groups.numpy()
        shown = [
            _of_image(name, test, groups == image, image, counts)
            for image, counts in enumerate(places)
            if counts.any() and counts.sum() == (groups == image).sum()
        ]
        if shown:
            note = "; ".join(words for _, words in shown)
            figures.append(plot(name, *(pair for pair, _ in shown), note=note, beside=True))
    if not figures:
        return None
    about = (
        "Test images, first seed. Left: dark pixels have low confidence. Right: dark pixels are "
        "wrong, white ones are ignored. A calibrated network is wrong where confidence is low."
    )
    return Panel("maps", "Confidence and errors in images", about, plots(figures, free=True))


def _places(cell: SavedCell) -> list[Bool[np.ndarray, "h w"]]:
    """Valid (non-ignored) pixels of each image that the record has."""
    pixels: Any = (cell.record or {}).get("pixels")
    if pixels is None:
        return []
    return [
        np.repeat(np.arange(len(runs)) % 2 == 0, runs).reshape(pixels["shape"])
        for runs in pixels["runs"]
    ]


def _of_image(
    name: str,
    test: Predictions,
    at: Bool[np.ndarray, " n"],
    image: int,
    counts: Bool[np.ndarray, "h w"],
) -> tuple[str, str]:
    """Both maps of an image, which stay together, and what they show in words."""
    right = test.correct.numpy()[at] > 0
    words = f"image {image + 1}, {right.mean():.1%} of the pixels correct"
    greys = {
        "confidence": (255 * test.confidence.numpy()[at]).round().clip(0, 255),
        "errors": np.where(right, RIGHT, WRONG),
    }
    shown = []
    for what, grey in greys.items():
        pixels = np.full(counts.shape, LEFT_OUT, np.uint8)
        pixels[counts] = grey
        shown.append(_picture(pixels, f"{what} of {name}, {words}"))
    return f"<div>{''.join(shown)}</div>", words


def _picture(pixels: UInt8[np.ndarray, "h w"], words: str) -> str:
    step = -(-max(pixels.shape) // SIDE)
    small = np.ascontiguousarray(pixels[::step, ::step])
    height, width = small.shape
    return (
        f'<img class="map" src="{grey_png(small)}" width="{width}" height="{height}" '
        f'alt="{escape(words)}" data-tip="{escape(words)}"/>'
    )


def grey_png(pixels: UInt8[np.ndarray, "h w"]) -> str:
    """A data URI of a PNG; 0 is black, 255 white."""
    height, width = pixels.shape
    # Each line begins with the number of its filter: 0, none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)
    held = b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )
    return f"data:image/png;base64,{base64.b64encode(held).decode()}"


def _chunk(kind: bytes, held: bytes) -> bytes:
    return struct.pack(">I", len(held)) + kind + held + struct.pack(">I", zlib.crc32(kind + held))
