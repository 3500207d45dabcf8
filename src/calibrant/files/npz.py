"""Arrays in `.npz` files, read without `np.load`: declared sizes are checked first."""

import io
import math
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrant.files.checks import (
    Limits,
    check_bools,
    check_dtype,
    check_present,
    check_size,
    is_text,
    listed,
    one_line,
)

MAX_MEMBERS = 64
# 64 members need a few kB; zipfile would allocate an object for every entry of a longer table.
MAX_CONTENTS = 2**20
# The header of a numeric array is about 120 bytes.
MAX_HEADER = 4096
BLOCK = 4 * 2**20
# The header of a member up to its name.
LOCAL = struct.Struct("<4s22xHH")
# Most bytes after the data of a member: checksum and sizes, from streaming writers.
DESCRIPTOR = 24
# The flag of names in UTF-8.
UTF8 = 0x800


def names(path: Path) -> list[str]:
    """Members of the archive, without their `.npy`."""
    with _archive(path) as archive:
        return list(_members(path, archive))


def read(
    path: Path, requested: Sequence[str], limits: Limits, text: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read the requested members only; those in `text` may hold strings."""
    with _archive(path) as archive:
        members = _members(path, archive)
        check_present(path, requested, list(members))
        for name in requested:
            declared, stored = members[name].file_size, members[name].compress_size
            check_size(path, f"member {name}", declared, stored, limits)
        return {name: _array(path, archive, members[name], text=name in text) for name in requested}


def write(handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what `np.savez` writes, also for names that are parameters of `np.savez`."""
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        for name, given in arrays.items():
            array = given.astype(str) if is_text(given) else given
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


class _Guarded(io.FileIO):
    """A file that refuses a huge read while zipfile parses the table of contents."""

    guarded = True

    def read(self, size: int | None = -1, /) -> bytes:
        if self.guarded and size is not None and size > MAX_CONTENTS:
            raise zipfile.BadZipFile("its table of contents is too long for 64 members")
        return super().read(size) or b""


def _invalid(path: Path, reason: object) -> ValueError:
    return ValueError(f"{path} is not a valid npz file: {one_line(reason)}")


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with _Guarded(path) as handle:
        if path.stat().st_size == 0:
            raise _invalid(path, "it is empty")
        # zipfile raises many kinds of errors on a malformed table of contents.
        try:
            archive = zipfile.ZipFile(handle)
        except Exception as error:
            raise _invalid(path, error) from error
        handle.guarded = False
        with archive:
            _check_layout(path, handle, archive)
            yield archive


def _check_layout(path: Path, handle: _Guarded, archive: zipfile.ZipFile) -> None:
    """Refuse bytes that belong to no member, and members with two different names.

    Otherwise a damaged table of contents could hide a member.
    """
    end = 0
    for entry in sorted(archive.infolist(), key=lambda each: each.header_offset):
        if not 0 <= entry.header_offset - end <= DESCRIPTOR:
            raise _invalid(path, "its table of contents does not match its members")
        handle.seek(entry.header_offset)
        head = handle.read(LOCAL.size).ljust(LOCAL.size, b"\0")
        magic, name_length, extra_length = LOCAL.unpack(head)
        encoding = "utf-8" if entry.flag_bits & UTF8 else "cp437"
        name = handle.read(name_length).decode(encoding, "replace")
        if magic != b"PK\3\4" or name != entry.orig_filename:
            raise _invalid(path, f"a member has two names, {listed([entry.orig_filename, name])}")
        end = handle.tell() + extra_length + entry.compress_size
    if not 0 <= archive.start_dir - end <= DESCRIPTOR:
        raise _invalid(path, "its table of contents does not match its members")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members by array name; refuse members that numpy would not have written."""
    entries = archive.infolist()
    if len(entries) > MAX_MEMBERS:
        raise _invalid(path, f"it has {len(entries)} members, at most {MAX_MEMBERS} are allowed")
    members = {}
    for entry in entries:
        member = entry.orig_filename
        shown = repr(one_line(member, 60))
        if not member.endswith(".npy") or len(member) == len(".npy"):
            raise _invalid(path, f"member {shown} is no .npy array")
        if "/" in member or "\\" in member or "\0" in member:
            raise _invalid(path, f"member {shown} has a path in its name")
        name = member.removesuffix(".npy")
        if name in members:
            raise _invalid(path, f"member {shown} appears twice")
        members[name] = entry
    return members


@contextmanager
def _damage(path: Path, where: str) -> Iterator[None]:
    """Convert the errors of zipfile, zlib and numpy to ValueErrors that name the file."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{path}: {where} does not fit in memory: {one_line(error)}") from error
    except Exception as error:
        raise _invalid(path, f"{where}: {error}") from error


def _array(
    path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, text: bool
) -> NDArray[Any]:
    where = f"member {entry.filename.removesuffix('.npy')}"
    if entry.flag_bits & 1:
        raise _invalid(path, f"{where} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _invalid(path, f"{where} has unsupported compression {entry.compress_type}")
    with _damage(path, where):
        stream = archive.open(entry)
    with stream:
        with _damage(path, where):
            prefix = stream.read(MAX_HEADER)
            shape, fortran, dtype, start = _header(prefix)
        check_dtype(f"{path}: {where}", dtype, text=text)
        expected, held = math.prod(shape) * dtype.itemsize, entry.file_size - start
        if min(shape, default=0) < 0 or expected != held:
            reason = f"{where} declares {shape} {dtype}, {expected} bytes, and holds {held}"
            raise _invalid(path, reason)
        with _damage(path, where):
            raw = _fill(stream.read, prefix[start:], held)
            array = raw.view(dtype).reshape(shape, order="F" if fortran else "C")
    check_bools(f"{path}: {where}", array)
    native = array.astype(dtype.newbyteorder("="), copy=False)
    if dtype.kind == "U" and native.view(np.uint32).max(initial=0) > sys.maxunicode:
        raise _invalid(path, f"{where} holds numbers that are no characters")
    return native


def _header(prefix: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether in Fortran order, dtype, and the offset of the data."""
    # numpy reads the header before it checks its length; a short stream limits it.
    stream = io.BytesIO(prefix)
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version} is only for structured arrays")
    shape, fortran, dtype = readers[version](stream, max_header_size=MAX_HEADER)
    return shape, fortran, dtype, stream.tell()


def _fill(pull: Callable[[int], bytes], first: bytes, size: int) -> NDArray[np.uint8]:
    """Read exactly `size` bytes, in blocks."""
    raw = np.empty(size, dtype=np.uint8)
    done, block = 0, first
    while block:
        raw[done : done + len(block)] = np.frombuffer(block, dtype=np.uint8)
        done += len(block)
        block = pull(BLOCK)
    if done != size:
        raise ValueError(f"it ends after {done} of {size} bytes")
    return raw
