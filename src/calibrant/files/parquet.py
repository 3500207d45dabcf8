"""Arrays in `.parquet` files, with page checksums."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from calibrant.extras import need
from calibrant.files.checks import DIGEST, Limits, check_size, digest, listed, one_line
from calibrant.files.parquet_headers import unpacked_bytes
from calibrant.files.tables import array_names, check_table, numbered_columns


def names(path: Path) -> list[str]:
    """Columns of the table; numbered columns are one array."""
    with _opened(path) as file:
        return array_names(file.schema_arrow.names)


def read(path: Path, requested: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
    """Read the columns of the requested arrays: numbers or lists of numbers of equal length."""
    with _opened(path) as file:
        schema = file.schema_arrow
        numbered = {name: numbered_columns(path, schema.names, name) for name in requested}
        columns = [column for name in requested for column in numbered[name] or [name]]
        _check_dots(path, schema.names, columns)
        types = {column: schema.field(column).type for column in columns}
        needed = _needed_bytes(path, file.metadata, types)
        check_size(path, f"column data of {listed(requested)}", needed, path.stat().st_size, limits)
        table = _table(path, file, columns)
        arrays = {name: _array(path, table, name, numbered[name]) for name in requested}
        _compare(path, schema, arrays)
        return arrays


def _compare(path: Path, schema: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Warn if the arrays differ from those that calibrant wrote.

    Not an error: pyarrow preserves the metadata of a table when its values are edited.
    """
    held = (schema.metadata or {}).get(DIGEST.encode())
    if held is None:
        return
    try:
        digests = dict(json.loads(held))
    except (ValueError, TypeError, RecursionError):
        digests = {}
    known = set(digests) == set(array_names(schema.names))
    if not known or any(digests[name] != digest(name, array) for name, array in arrays.items()):
        warnings.warn(
            f"{path} is damaged, or was changed since calibrant wrote it: its {DIGEST} differs",
            stacklevel=2,
        )


def write(handle: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write one column per array; rows of a 2-D array are fixed-size lists."""
    check_table(arrays)
    pa = need("pyarrow", extra="audit", what="writing parquet files")
    pq = need("pyarrow.parquet", extra="audit", what="writing parquet files")
    columns = {}
    for name, array in arrays.items():
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        if array.ndim == 2:
            flat = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        columns[name] = flat
    # Checksums of pages do not detect a page of another file.
    digests = json.dumps({name: digest(name, array) for name, array in arrays.items()})
    table = pa.table(columns, metadata={DIGEST: digests})
    # Dictionary-encoded constant labels would exceed the limit of expansion.
    pq.write_table(table, handle, write_page_checksum=True, use_dictionary=False)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file; convert errors of pyarrow to ValueErrors that name the file."""
    pa = need("pyarrow", extra="audit", what="reading parquet files")
    pq = need("pyarrow.parquet", extra="audit", what="reading parquet files")
    with open(path, "rb") as handle:
        handle.seek(max(path.stat().st_size - 4, 0))
        if handle.read(4) != b"PAR1":
            raise ValueError(f"not a valid parquet file: {path} (last 4 bytes are not PAR1)")
    try:
        # pyarrow would interpret a string such as `s3://x` as a URL.
        with pa.OSFile(str(path)) as source:
            yield pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"not a valid parquet file: {path} ({one_line(error)})") from error


def _check_dots(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse ambiguous names: for `a` pyarrow also reads a column `a.b`."""
    for inner, outer in ((names, columns), (columns, names)):
        known = set(outer)
        for name in inner:
            parts = name.split(".")
            for i in range(1, len(parts)):
                if (prefix := ".".join(parts[:i])) in known:
                    shown = f"{prefix!r} and {one_line(name, 60)!r}"
                    raise ValueError(f"{path}: columns {shown} are ambiguous; rename one")


def _is_list(kind: Any) -> bool:
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _item_bytes(path: Path, column: str, kind: Any) -> int:
    """Size of one value of the column in memory."""
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    item = kind.value_type if _is_list(kind) else kind
    if types.is_boolean(item):
        return 1
    if not (types.is_integer(item) or types.is_floating(item)):
        raise ValueError(
            f"{path}: column {column!r} has type {one_line(kind, 60)}; "
            "expected numbers, or lists of numbers"
        )
    return int(item.bit_width) // 8


def _needed_bytes(path: Path, metadata: Any, types: Mapping[str, Any]) -> int:
    """Size of the columns in memory.

    The uncompressed size in the footer is not a bound, because runs of equal values are encoded.
    The number of rows is one for columns of numbers, not of lists.
    """
    item_bytes = {column: _item_bytes(path, column, kind) for column, kind in types.items()}
    lists = {column: item_bytes[column] for column, kind in types.items() if _is_list(kind)}
    rows = sum(max(int(metadata.row_group(i).num_rows), 0) for i in range(metadata.num_row_groups))
    plain = sum(item_bytes.values()) - sum(lists.values())
    return rows * plain + (unpacked_bytes(path, lists) if lists else 0)


def _table(path: Path, file: Any, columns: list[str]) -> Any:
    pa = need("pyarrow", extra="audit", what="reading parquet files")
    groups = []
    # One row group at a time, so that the error can name the damaged one.
    for group in range(file.metadata.num_row_groups):
        try:
            groups.append(file.read_row_group(group, columns=columns))
        except OSError as error:
            if "CRC checksum" not in str(error):
                raise
            raise ValueError(
                f"{path}: page checksum failed in row group {group}: file is damaged; "
                "fetch or write it again"
            ) from error
    table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    table.validate()
    if columns and len(table) != file.metadata.num_rows:
        raise ValueError(f"{path} declares {file.metadata.num_rows} rows and holds {len(table)}")
    return table


def _array(path: Path, table: Any, name: str, numbered: list[str]) -> NDArray[Any]:
    if not numbered:
        return _numbers(path, name, table.column(name))
    parts = [_numbers(path, column, table.column(column)) for column in numbered]
    for column, part in zip(numbered, parts, strict=True):
        if part.ndim != 1:
            raise ValueError(f"{path}: numbered column {column!r} holds lists; expected numbers")
    return np.stack(parts, axis=1)


def _numbers(path: Path, column: str, data: Any) -> NDArray[Any]:
    """Convert a column to (n,), or to (n, k) for lists, without a loop over rows."""
    _check_nulls(path, column, data.null_count)
    if not _is_list(data.type):
        return _joined(data.chunks, data.type)
    width = _width(path, column, data)
    flat = [chunk.flatten() for chunk in data.chunks]
    _check_nulls(path, column, sum(chunk.null_count for chunk in flat))
    return _joined(flat, data.type.value_type).reshape(len(data), width)


def _joined(chunks: Sequence[Any], kind: Any) -> NDArray[Any]:
    """Concatenate the chunks to a writable array; the memory of arrow is read-only."""
    empty = np.empty(0, dtype=kind.to_pandas_dtype())
    return np.concatenate([empty, *(chunk.to_numpy(zero_copy_only=False) for chunk in chunks)])


def _check_nulls(path: Path, column: str, nulls: int) -> None:
    if nulls:
        raise ValueError(
            f"{path}: column {column!r} has {nulls} null values; fill them or drop their rows"
        )


def _width(path: Path, column: str, data: Any) -> int:
    """The common length of all lists of the column."""
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    if types.is_fixed_size_list(data.type):
        return int(data.type.list_size)
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in data.chunks] or [[0]])
    width = int(lengths[0]) if len(lengths) else 0
    ragged = np.flatnonzero(lengths != width)
    if len(ragged):
        row = int(ragged[0])
        raise ValueError(
            f"{path}: column {column!r} has lists of different lengths: row 0 has {width}, "
            f"row {row} has {lengths[row]}; pad them or write them again"
        )
    return width
