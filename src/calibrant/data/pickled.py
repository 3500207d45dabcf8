"""Byte arrays from Python pickles, without running code: only a fixed set of calls is allowed."""

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.files.checks import one_line


class ByteArray:
    """Replaces a numpy array while unpickling: numpy itself is never called."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw
        if dtype is not _BYTE or fortran or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("only plain arrays of uint8 are supported")
        if not all(isinstance(s, int) and s >= 0 for s in shape) or math.prod(shape) != len(raw):
            raise pickle.UnpicklingError(f"an array declares {shape}, but has {len(raw)} bytes")
        self.values = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _Fixed:
    """Replaces an object of numpy; a pickle must not change it."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


class _Byte(_Fixed):
    """Replaces the dtype uint8; its state is ignored."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


_BYTE = _Byte()


class _Dtype(_Fixed):
    def __call__(self, code: Any, *rest: Any) -> _Byte:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError(f"only arrays of uint8 are supported, not {code!r}")
        return _BYTE


class _Reconstruct(_Fixed):
    def __call__(self, *args: Any) -> ByteArray:
        return ByteArray()


class _Encode(_Fixed):
    def __call__(self, text: Any, codec: Any = "latin1") -> bytes:
        if not isinstance(text, str) or codec not in ("latin1", "latin-1", b"latin1"):
            raise pickle.UnpicklingError("only latin-1 text is supported")
        return text.encode("latin-1")


ALLOWED: dict[tuple[str, str], _Fixed] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _Fixed(),
    ("numpy", "dtype"): _Dtype(),
    ("_codecs", "encode"): _Encode(),
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it imports {module}.{name}, which is not allowed")
        return ALLOWED[module, name]


def unpickled(path: Path, content: bytes) -> dict[bytes, Any]:
    """Read a dict of byte arrays, lists, numbers and bytes; `path` is for messages."""
    try:
        _check_memo(content)
        # Only the five replacements above can be called, so no code of the file runs.
        found = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:
        # A damaged pickle can raise almost any exception.
        raise ValueError(f"{path} is not a readable pickle: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a dict, got {type(found).__name__}")
    named = {key.encode() if isinstance(key, str) else key: item for key, item in found.items()}
    return {
        key: item.values if isinstance(item, ByteArray) and hasattr(item, "values") else item
        for key, item in named.items()
    }


def _check_memo(content: bytes) -> None:
    """Raise for memo indices larger than the file: each would allocate memory."""
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name.endswith("PUT") and argument is not None and argument > position:
            raise pickle.UnpicklingError(f"object number {argument} at byte {position}")
