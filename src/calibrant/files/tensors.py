"""Arrays in `.safetensors` files, with a checksum in the metadata.

The format has none, so damaged values of files from other writers are not detected.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from calibrant.extras import need
from calibrant.files.checks import (
    DIGEST,
    Limits,
    check_bools,
    check_present,
    check_size,
    digest,
    is_text,
    one_line,
)

HEX = re.compile("[0-9a-f]{64}")
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4}
ITEM_BYTES |= {"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def names(path: Path) -> list[str]:
    """Names of the tensors."""
    with _opened(path, "np") as file:
        return list(file.keys())


def read(
    path: Path, requested: Sequence[str], limits: Limits, text: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read the requested tensors; bfloat16, which numpy lacks, as float32. There is no text."""
    arrays: dict[str, NDArray[Any]] = {}
    with _opened(path, "np") as file:
        held = list(file.keys())
        check_present(path, requested, held)
        recorded = _recorded(path, file.metadata() or {})
        for name in requested if recorded is None else held:
            tensor = file.get_slice(name)
            dtype = tensor.get_dtype()
            if dtype not in ITEM_BYTES:
                raise ValueError(
                    f"{path}: tensor {name!r} has dtype {dtype}, which is not supported; "
                    f"expected one of {', '.join(ITEM_BYTES)}"
                )
            size = math.prod(tensor.get_shape()) * ITEM_BYTES[dtype]
            check_size(path, f"tensor {name}", size, size, limits)
            arrays[name] = _widened(path, name) if dtype == "BF16" else file.get_tensor(name)
            check_bools(f"{path}: tensor {name}", arrays[name])
    if recorded is not None and _digest(arrays) != recorded:
        raise ValueError(f"{path} is damaged: its sha256 differs; fetch or write it again")
    return {name: arrays[name] for name in requested}


def write(handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays in C order, the only one of the format."""
    library = need("safetensors.numpy", extra="audit", what="writing safetensors files")
    if "__metadata__" in arrays:
        raise ValueError("the name '__metadata__' is reserved by safetensors; rename the array")
    for name, array in arrays.items():
        if is_text(array):
            raise ValueError(f"safetensors hold no strings, {name!r} does; write npz instead")
    # The library writes the memory of a Fortran array as if it were in C order.
    rows = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # Not save_file, which replaces the file.
    handle.write(library.save(rows, metadata={DIGEST: _digest(rows)}))


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Digest of all tensors, in the order of their names."""
    each = "".join(digest(name, array) for name, array in sorted(arrays.items()))
    return hashlib.sha256(each.encode()).hexdigest()


def _recorded(path: Path, metadata: Mapping[str, str]) -> str | None:
    """Return the digest in the metadata; a damaged key must not look like none."""
    for name, value in metadata.items():
        if name != DIGEST and (name.startswith("calibrant") or HEX.fullmatch(value)):
            raise ValueError(f"{path} is damaged: unknown metadata {one_line(name, 60)!r}")
    return metadata.get(DIGEST)


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    library = need("safetensors", extra="audit", what="reading safetensors files")
    try:
        with library.safe_open(path, framework=framework) as file:
            yield file
    except library.SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {one_line(error)}") from error


def _widened(path: Path, name: str) -> NDArray[np.float32]:
    with _opened(path, "pt") as file:
        values: NDArray[np.float32] = file.get_tensor(name).float().numpy()
    return values
