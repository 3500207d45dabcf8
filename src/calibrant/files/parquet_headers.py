"""Read the raw footer and page headers of a parquet file, before pyarrow decodes anything.

pyarrow allocates as many list items as a page header declares, regardless of the footer, so a few
hundred bytes can allocate gigabytes; and parsing a damaged footer can crash the process.

References:
    Apache Thrift, doc/specs/thrift-compact-protocol.md
    Apache Parquet, parquet.thrift
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

# A table with list columns has few columns, so its footer is short.
MAX_FOOTER = 16 * 2**20
MAX_PAGE_HEADER = 2**16

# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _CHUNK_META = 4, 1, 3
_PATH, _CLAIMED, _STORED, _DATA_AT, _DICTIONARY_AT = 3, 5, 7, 9, 11
_CHUNK: dict[int, Any] = {_PATH: {}, _CLAIMED: {}, _STORED: {}, _DATA_AT: {}, _DICTIONARY_AT: {}}
_FOOTER = {_ROW_GROUPS: {_COLUMNS: {_CHUNK_META: _CHUNK}}}
_PAGE_STORED, _PAGE_V1, _PAGE_V2, _VALUES = 3, 5, 8, 1
_PAGE: dict[int, Any] = {_PAGE_STORED: {}, _PAGE_V1: {_VALUES: {}}, _PAGE_V2: {_VALUES: {}}}

# The compact encoding of Thrift: type codes, and how deep structs may be nested.
MAX_DEPTH = 32

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGER_BITS = {4: 16, 5: 32, 6: 64}


def unpacked_bytes(path: Path, item_bytes: Mapping[str, int]) -> int:
    """Uncompressed size that the pages of some columns declare.

    Args:
        path: a file that ends with the parquet magic.
        item_bytes: size of one value, for each column.

    Raises:
        ValueError: the footer or a page header is invalid.
    """
    total = 0
    with open(path, "rb") as handle:
        try:
            for chunk in _chunks(handle, path.stat().st_size):
                column = chunk[_PATH][0].decode()
                if column in item_bytes:
                    total += item_bytes[column] * sum(_page_values(handle, chunk))
        # A field that is missing, or not of the type in parquet.thrift.
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"not a valid parquet file: {path} (bad footer or page)") from error
    return total


def _chunks(handle: BinaryIO, size: int) -> Iterator[Mapping[int, Any]]:
    """Read the records of all column chunks from the footer."""
    handle.seek(size - 8)
    length = int.from_bytes(handle.read(4), "little")
    if length > min(size - 8, MAX_FOOTER):
        raise ValueError("footer is too long")
    handle.seek(size - 8 - length)
    footer, _ = decode(handle.read(length), _FOOTER)
    for group in footer[_ROW_GROUPS]:
        for column in group[_COLUMNS]:
            yield column[_CHUNK_META]


def _page_values(handle: BinaryIO, chunk: Mapping[int, Any]) -> Iterator[int]:
    """Number of values that each page of a column chunk declares."""
    # Without values pyarrow neither reads nor writes a page.
    if chunk[_CLAIMED] == 0:
        return
    at = chunk[_DATA_AT]
    # As in pyarrow: old writers store 0 without a dictionary.
    if 0 < chunk.get(_DICTIONARY_AT, 0) < at:
        at = chunk[_DICTIONARY_AT]
    end = at + chunk[_STORED]
    while at < end:
        handle.seek(at)
        page, length = decode(handle.read(MAX_PAGE_HEADER), _PAGE)
        at += length + page[_PAGE_STORED]
        # A page has a header of version 1 or 2; a dictionary has neither.
        values = [page[field][_VALUES] for field in (_PAGE_V1, _PAGE_V2) if field in page]
        if min(page[_PAGE_STORED], *values, 0) < 0:
            raise ValueError("negative size")
        yield max(values, default=0)


def decode(data: bytes, keep: Mapping[int, Any]) -> tuple[dict[int, Any], int]:
    """Read one struct from the start of `data`.

    Args:
        data: the record, and perhaps more after it.
        keep: the fields to return, by number, each with a mapping for nested structs; others are
            skipped.

    Returns:
        the fields that are present, and the length of the record.

    Raises:
        ValueError: the record is invalid.
        IndexError: the record is longer than `data`.
    """
    reader = _Reader(data)
    return reader.struct(keep, 0), reader.at


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("integer of more than 64 bits")

    def integer(self, bits: int) -> int:
        # Other readers truncate the extra bits and get another number.
        value = self.varint()
        if value >> bits:
            raise ValueError(f"integer of more than {bits} bits")
        return (value >> 1) ^ -(value & 1)

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise IndexError("record is truncated")
        self.at += length
        return self.data[self.at - length : self.at]

    def struct(self, keep: Mapping[int, Any] | None, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("record is nested too deeply")
        found: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            step, kind = head >> 4, head & 0x0F
            field = field + step if step else self.integer(16)
            inner = keep.get(field) if keep is not None else None
            # In a struct a boolean is encoded in the type.
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, inner, depth)
            if inner is not None:
                # Other readers may use the other value.
                if field in found:
                    raise ValueError(f"field {field} appears twice")
                found[field] = value
        return found

    def value(self, kind: int, keep: Mapping[int, Any] | None, depth: int) -> Any:
        if kind in _INTEGER_BITS:
            return self.integer(_INTEGER_BITS[kind])
        if kind in (_TRUE, _FALSE, _BYTE):
            return self.byte()
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind == _STRUCT:
            return self.struct(keep, depth + 1)
        if kind in (_LIST, _SET):
            head = self.byte()
            size = head >> 4 if head >> 4 < 15 else self.varint()
            return self.items(size, (head & 0x0F,), keep, depth)
        if kind == _MAP:
            size = self.varint()
            both = self.byte() if size else 0
            return self.items(size, (both >> 4, both & 0x0F), None, depth)
        raise ValueError(f"unknown type {kind}")

    def items(
        self, size: int, kinds: tuple[int, ...], keep: Mapping[int, Any] | None, depth: int
    ) -> list[Any]:
        if depth > MAX_DEPTH:
            raise ValueError("record is nested too deeply")
        found = []
        # Every item takes at least a byte, so the data bound the declared size.
        for _ in range(size):
            for kind in kinds:
                value = self.value(kind, keep, depth + 1)
                if keep is not None:
                    found.append(value)
        return found
