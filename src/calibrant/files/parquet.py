"""Arrays in `.parquet` files, with page checksums."""

import json
import math
import warnings
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
    check_present,
    check_size,
    digest,
    listed,
    one_line,
)
from calibrant.files.parquet_headers import unpacked_bytes
from calibrant.files.tables import array_names, check_table, numbered_columns

# Of the metadata only what pandas finds its index by: other keys may describe the old values.
KEPT = (b"pandas",)


def columns(path: Path) -> list[str]:
    """Columns of the table."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def names(path: Path) -> list[str]:
    """Columns of the table; numbered columns are one array."""
    return array_names(columns(path))


def read(
    path: Path, requested: Sequence[str], limits: Limits, text: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read the columns of the requested arrays: numbers or lists of numbers of equal length.

    Those in `text` may be strings.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        numbered = {name: numbered_columns(path, schema.names, name) for name in requested}
    wanted = [column for name in requested for column in numbered[name] or [name]]
    _check_dots(path, schema.names, wanted)
    strings = [column for column in wanted if column in text and _is_string(schema, column)]
    for column in wanted:
        if column not in strings:
            _check_numbers(path, column, schema.field(column).type)
    # Encoded as in the file: equal strings are one object, so that memory has a bound.
    with _opened(path, strings) as file:
        _check_memory(path, file, wanted, strings, limits)
        table = _table(path, file, wanted)
        arrays = {name: _array(path, table, name, numbered[name]) for name in requested}
        _compare(path, schema, arrays)
        return arrays


def read_optional(path: Path, requested: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
    """Read columns of numbers in which a null is NaN."""
    pc = need("pyarrow.compute", extra="audit", what="reading parquet files")
    with _opened(path) as file:
        schema = file.schema_arrow
        check_present(path, requested, schema.names)
        _check_dots(path, schema.names, requested)
        for column in requested:
            _check_numbers(path, column, schema.field(column).type)
        _check_memory(path, file, [*requested], [], limits)
        table = _table(path, file, [*requested])
    arrays = {}
    for name in requested:
        data = table.column(name)
        plain = data if _is_list(data.type) else pc.fill_null(data.cast("double"), math.nan)
        arrays[name] = _numbers(path, name, plain if data.null_count else data)
    return arrays


def read_missing(path: Path, requested: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
    """Read columns of strings, booleans or numbers; a null is None, of numbers NaN."""
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    with _opened(path) as file:
        schema = file.schema_arrow
        check_present(path, requested, schema.names)
    strings = [each for each in requested if _is_string(schema, each)]
    objects = [*strings, *(e for e in requested if types.is_boolean(schema.field(e).type))]
    arrays = read_optional(path, [each for each in requested if each not in objects], limits)
    _check_dots(path, schema.names, objects)
    with _opened(path, strings) as file:
        _check_memory(path, file, objects, strings, limits)
        table = _table(path, file, objects) if objects else None
    for name in objects:
        chunks = [] if table is None else table.column(name).chunks
        parts = [
            # The last entry stands for nulls. Equal strings are one object.
            np.array([*c.dictionary.to_pylist(), None], object)[c.indices.fill_null(-1)]
            if name in strings
            else np.array(c.to_pylist(), object)
            for c in chunks
        ]
        arrays[name] = np.concatenate([np.empty(0, object), *parts])
    return arrays


def rewrite(
    paths: Sequence[Path],
    handle: BinaryIO,
    replaced: Mapping[str, NDArray[Any] | None],
    limits: Limits,
) -> None:
    """Write the tables below each other, with other values in some columns, or without them.

    Columns of structs and of lists of strings are left out, with a warning.
    """
    pa = need("pyarrow", extra="audit", what="writing parquet files")
    pq = need("pyarrow.parquet", extra="audit", what="writing parquet files")
    with _opened(paths[0]) as file:
        schema = file.schema_arrow
    kept = [name for name in schema.names if name not in replaced and _is_flat(schema, name)]
    nested = [name for name in schema.names if name not in replaced and name not in kept]
    if nested:
        warnings.warn(f"{paths[0]}: nested columns are not kept: {listed(nested, 5)}", stacklevel=3)
    _check_dots(paths[0], schema.names, kept)
    strings = [name for name in kept if _is_string(schema, name)]
    parts = []
    for path in paths:
        with _opened(path, strings) as file:
            if file.schema_arrow.names != schema.names:
                raise ValueError(f"{path} has other columns than {paths[0]}")
            _check_memory(path, file, kept, strings, limits)
            parts.append(_plain(path, _table(path, file, kept), limits))
    held = pa.concat_tables(parts, promote_options="permissive") if kept else None
    found: dict[str, Any] = {}
    for name in [*schema.names, *(each for each in replaced if each not in schema.names)]:
        values = replaced.get(name)
        if values is not None:
            found[name] = _column(values)
        elif name in kept and held is not None:
            found[name] = held.column(name)
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key in KEPT}
    table = pa.table(found, metadata=metadata)
    pq.write_table(table, handle, write_page_checksum=True, use_dictionary=strings)


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
    # Checksums of pages do not detect a page of another file.
    digests = json.dumps({name: digest(name, array) for name, array in arrays.items()})
    found = {name: _column(array) for name, array in arrays.items()}
    table = pa.table(found, metadata={DIGEST: digests})
    # Dictionary-encoded constant labels would exceed the limit of expansion.
    pq.write_table(table, handle, write_page_checksum=True, use_dictionary=False)


def _column(array: NDArray[Any]) -> Any:
    pa = need("pyarrow", extra="audit", what="writing parquet files")
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, array.shape[1]) if array.ndim == 2 else flat


@contextmanager
def _opened(path: Path, strings: Sequence[str] = ()) -> Iterator[Any]:
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
            yield pq.ParquetFile(
                source, page_checksum_verification=True, read_dictionary=[*strings]
            )
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


def _is_string(schema: Any, column: str) -> bool:
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_flat(schema: Any, column: str) -> bool:
    """Whether a column holds strings, values of fixed width, or lists of numbers."""
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    kind = schema.field(column).type
    item = kind.value_type if _is_list(kind) else kind
    fixed = types.is_primitive(item) or types.is_decimal(item)
    return bool(fixed) or _is_string(schema, column)


def _item_bytes(kind: Any) -> int:
    """Size of one value of a column in memory."""
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    item = kind.value_type if _is_list(kind) else kind
    return 1 if types.is_boolean(item) else -(-int(item.bit_width) // 8)


def _check_memory(
    path: Path, file: Any, columns: Sequence[str], strings: Sequence[str], limits: Limits
) -> None:
    """Refuse columns that would take too much memory, before they are read."""
    kinds = {name: file.schema_arrow.field(name).type for name in columns if name not in strings}
    needed = _needed_bytes(path, file.metadata, kinds)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    for group in groups if strings else ():
        chunks = (group.column(i) for i in range(group.num_columns))
        sizes = (each.total_uncompressed_size for each in chunks if each.path_in_schema in strings)
        # Indices of 4 bytes, and the different strings.
        needed += sum(max(int(size), 0) for size in sizes) + 4 * len(strings) * group.num_rows
    check_size(path, f"column data of {listed(columns)}", needed, path.stat().st_size, limits)


def _plain(path: Path, table: Any, limits: Limits) -> Any:
    """Turn encoded strings into plain ones, if these fit into memory."""
    pc = need("pyarrow.compute", extra="audit", what="reading parquet files")
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    for at, field in enumerate(table.schema):
        if not types.is_dictionary(field.type):
            continue
        chunks = table.column(at).chunks
        lengths = [pc.take(pc.binary_length(each.dictionary), each.indices) for each in chunks]
        size = sum(pc.sum(each).as_py() or 0 for each in lengths)
        check_size(path, f"column {field.name}", size, path.stat().st_size, limits)
        table = table.set_column(at, field.name, table.column(at).cast(field.type.value_type))
    return table


def _check_numbers(path: Path, column: str, kind: Any) -> None:
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    item = kind.value_type if _is_list(kind) else kind
    if not (types.is_boolean(item) or types.is_integer(item) or types.is_floating(item)):
        raise ValueError(
            f"{path}: column {column!r} has type {one_line(kind, 60)}; "
            "expected numbers, or lists of numbers"
        )


def _needed_bytes(path: Path, metadata: Any, types: Mapping[str, Any]) -> int:
    """Size of the columns in memory.

    The uncompressed size in the footer is not a bound, because runs of equal values are encoded.
    The number of rows is one for columns of numbers, not of lists.
    """
    item_bytes = {column: _item_bytes(kind) for column, kind in types.items()}
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
            raise ValueError(
                f"{path}: row group {group} cannot be read ({one_line(error)}): file is damaged; "
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
    types = need("pyarrow.types", extra="audit", what="reading parquet files")
    _check_nulls(path, column, data.null_count)
    if types.is_dictionary(data.type):
        parts = [np.array(c.dictionary.to_pylist() or [""], object) for c in data.chunks]
        chosen = [part[c.indices] for part, c in zip(parts, data.chunks, strict=True)]
        return np.concatenate([np.empty(0, object), *chosen])
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
