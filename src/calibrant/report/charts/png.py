"""Pictures of grey pixels as text that an HTML page can hold."""

import base64
import struct
import zlib

import numpy as np
from jaxtyping import UInt8


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
