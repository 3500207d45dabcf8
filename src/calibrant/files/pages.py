"""What the raw page headers of a parquet file claim.

pyarrow unpacks as many list items as a page header claims, whatever the footer says, so a few
hundred bytes can ask for gigabytes; and its own view of a damaged footer can end the process.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from calibrant.files.thrift import decode

# A table with list columns is narrow, so its footer is short.
MAX_FOOTER = 16 * 2**20
MAX_PAGE_HEADER = 2**16

# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _CHUNK_META = 4, 1, 3
_PATH, _CLAIMED, _STORED, _DATA_AT, _DICTIONARY_AT = 3, 5, 7, 9, 11
_CHUNK: dict[int, Any] = {_PATH: {}, _CLAIMED: {}, _STORED: {}, _DATA_AT: {}, _DICTIONARY_AT: {}}
_FOOTER = {_ROW_GROUPS: {_COLUMNS: {_CHUNK_META: _CHUNK}}}
_PAGE_STORED, _PAGE_V1, _PAGE_V2, _VALUES = 3, 5, 8, 1
_PAGE: dict[int, Any] = {_PAGE_STORED: {}, _PAGE_V1: {_VALUES: {}}, _PAGE_V2: {_VALUES: {}}}


def unpacked_bytes(path: Path, item_bytes: Mapping[str, int]) -> int:
    """Bytes that the pages of some columns say they unpack to.

    Args:
        path: a file whose last 4 bytes are those of parquet.
        item_bytes: bytes of one value, for each column to look at.

    Raises:
        ValueError: the footer or a page header makes no sense.
    """
    total = 0
    with open(path, "rb") as handle:
        try:
            for chunk in _chunks(handle, path.stat().st_size):
                column = chunk[_PATH][0].decode()
                if column in item_bytes:
                    total += item_bytes[column] * sum(_page_values(handle, chunk))
        # A field that is absent or of another type than parquet.thrift says.
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"not a valid parquet file: {path} (bad footer or page)") from error
    return total


def _chunks(handle: BinaryIO, size: int) -> Iterator[Mapping[int, Any]]:
    """The records of all column chunks, from the footer."""
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
    """How many values each page of a column chunk claims to hold."""
    # pyarrow opens no page then, and writes none for a table without rows.
    if chunk[_CLAIMED] == 0:
        return
    at = chunk[_DATA_AT]
    # As pyarrow decides it: old writers put a 0 where there is no dictionary.
    if 0 < chunk.get(_DICTIONARY_AT, 0) < at:
        at = chunk[_DICTIONARY_AT]
    end = at + chunk[_STORED]
    while at < end:
        handle.seek(at)
        page, length = decode(handle.read(MAX_PAGE_HEADER), _PAGE)
        at += length + page[_PAGE_STORED]
        # Another field says which of the two counts; a dictionary has neither.
        values = [page[field][_VALUES] for field in (_PAGE_V1, _PAGE_V2) if field in page]
        if min(page[_PAGE_STORED], *values, 0) < 0:
            raise ValueError("negative size")
        yield max(values, default=0)
