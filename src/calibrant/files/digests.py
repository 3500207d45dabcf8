"""Digests of arrays, for formats without a checksum of the whole file."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Key of the metadata that holds them.
DIGEST = "calibrant_sha256"


def digest(name: str, array: NDArray[Any]) -> str:
    """SHA-256 of name, dtype, shape and values, in hexadecimal."""
    found = hashlib.sha256(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
