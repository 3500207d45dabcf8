"""Arrays in `.safetensors` files; the format has no checksum, so ours is in its metadata.

Damage to the values of files that others wrote goes unseen.
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
from calibrant.files.checks import Limits, check_size, check_truth, check_wanted, one_line
from calibrant.files.digests import DIGEST, digest

HEX = re.compile("[0-9a-f]{64}")
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4}
ITEM_BYTES |= {"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def names(path: Path) -> list[str]:
    """Names of the tensors."""
    with _opened(path, "np") as file:
        return list(file.keys())


def read(path: Path, wanted: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
    """Read the wanted tensors; bfloat16, which numpy lacks, comes back as float32."""
    arrays: dict[str, NDArray[Any]] = {}
    with _opened(path, "np") as file:
        held = list(file.keys())
        check_wanted(path, wanted, held)
        recorded = _recorded(path, file.metadata() or {})
        for name in wanted if recorded is None else held:
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
            check_truth(f"{path}: tensor {name}", arrays[name])
    if recorded is not None and _digest(arrays) != recorded:
        raise ValueError(f"{path} is damaged: its sha256 differs; fetch or write it again")
    return {name: arrays[name] for name in wanted}


def write(handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays in row order, the only one that the format knows."""
    library = need("safetensors.numpy", extra="audit", what="writing safetensors files")
    if "__metadata__" in arrays:
        raise ValueError("safetensors keeps the name '__metadata__' for itself; rename the array")
    # The library writes the memory of a Fortran array as if it were in row order.
    rows = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # Not its save_file, which makes a file of its own and swaps it for ours.
    handle.write(library.save(rows, metadata={DIGEST: _digest(rows)}))


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """One digest of all tensors, in the order of their names."""
    each = "".join(digest(name, array) for name, array in sorted(arrays.items()))
    return hashlib.sha256(each.encode()).hexdigest()


def _recorded(path: Path, metadata: Mapping[str, str]) -> str | None:
    """The digest that the writer left; a damaged one must not pass for none."""
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
