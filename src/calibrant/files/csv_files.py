"""Arrays in `.csv` and `.tsv` files: a header line, UTF-8; values are read as float64.

The header line says whether commas, semicolons or tabs separate the cells.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from calibrant.files.checks import Limits, check_present, check_size, one_line
from calibrant.files.tables import array_names, check_table, numbered_columns

MAX_HEADER = 4 * 2**20
ROWS = 4096
DELIMITERS = ",;\t"
# Booleans as other programs write them.
FLAGS = {"false": "0", "true": "1"}
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(e[+-]?[0-9]+)?", re.IGNORECASE)


def columns(path: Path) -> list[str]:
    """Columns of the table."""
    with _opened(path) as handle:
        return _header(path, handle)[0]


def names(path: Path) -> list[str]:
    """Columns of the table; numbered columns are one array."""
    return array_names(columns(path))


def read(
    path: Path, requested: Sequence[str], limits: Limits, text: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read the requested columns; others may hold any text.

    Those in `text` are strings if the first of them is not a number.
    """
    size = path.stat().st_size
    check_size(path, "the text", size, size, limits)
    with _opened(path) as handle:
        header, delimiter = _header(path, handle)
        numbered = {name: numbered_columns(path, header, name) for name in requested}
        wanted = {column for name in requested for column in numbered[name] or [name]}
        strings = _strings(path, header, [name for name in text if name in wanted])
        values: dict[str, NDArray[Any]] = dict(strings)
        if wanted - set(strings):
            values |= _body(path, handle, header, wanted - set(strings), delimiter)
    return {
        name: np.stack([values[column] for column in numbered[name]], axis=1)
        if numbered[name]
        else values[name].copy()
        for name in requested
    }


def read_optional(path: Path, requested: Sequence[str], limits: Limits) -> dict[str, NDArray[Any]]:
    """Read columns of numbers, or of True and False, in which an empty cell is NaN."""
    size = path.stat().st_size
    check_size(path, "the text", size, size, limits)
    with _opened(path) as handle:
        header, _ = _header(path, handle)
    check_present(path, requested, header)
    places = {name: header.index(name) for name in requested}
    found: dict[str, list[float]] = {name: [] for name in requested}
    for block in _blocks(path, header):
        for name, place in places.items():
            for cells in block:
                cell = cells[place].strip()
                cell = FLAGS.get(cell.lower(), cell)
                if cell and not _is_number(cell):
                    row = len(found[name])
                    shown = f"{one_line(cell, 40)!r} is not a number"
                    raise ValueError(f"{path}: row {row}, column {name!r}: {shown}")
                found[name].append(float(cell or "nan"))
    return {name: np.array(values) for name, values in found.items()}


def rewrite(
    paths: Sequence[Path],
    handle: BinaryIO,
    replaced: Mapping[str, NDArray[Any] | None],
    limits: Limits,
) -> None:
    """Write the tables below each other, with other values in some columns, or without them.

    All other cells and the delimiter stay as they are, one row at a time.
    """
    with _opened(paths[0]) as first:
        header, delimiter = _header(paths[0], first)
    kept = [name for name in header if replaced.get(name, ()) is not None]
    new = [name for name in replaced if name not in header and replaced[name] is not None]
    text = io.TextIOWrapper(handle, encoding="utf-8", newline="")
    writer = _writer(text, kept + new, delimiter)
    position = {name: at for at, name in enumerate(header)}
    given = {name: values for name, values in replaced.items() if values is not None}
    done = 0
    for path in paths:
        for block in _blocks(path, header):
            part = slice(done, done + len(block))
            values = {name: array[part].tolist() for name, array in given.items()}
            cells = zip(*block, strict=True)
            held = dict(zip(position, cells, strict=True))
            writer.writerows(
                zip(*(values.get(name, held.get(name)) for name in kept + new), strict=True)
            )
            done += len(block)
    text.flush()
    text.detach()


def _blocks(path: Path, header: list[str]) -> Iterator[list[list[str]]]:
    """Yield the rows as text, a few thousand at a time."""
    with _opened(path) as handle:
        own, delimiter = _header(path, handle)
        if own != header:
            raise ValueError(f"{path} has other columns than the first file")
        reader = csv.reader(handle, delimiter=delimiter)
        try:
            while block := list(islice(filter(None, reader), ROWS)):
                for cells in block:
                    if len(cells) != len(header):
                        raise ValueError(
                            f"{path}: a row has {len(cells)} cells, header has {len(header)}"
                        )
                yield block
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
        except csv.Error as error:
            raise ValueError(f"{path}: {one_line(error)}") from error


def read_strings(
    path: Path, requested: Sequence[str], *, missing: bool = False
) -> dict[str, NDArray[Any]]:
    """Read columns as they are written, also if they look like numbers."""
    with _opened(path) as handle:
        header, _ = _header(path, handle)
    return _strings(path, header, requested, numbers=False, missing=missing)


def _strings(
    path: Path,
    header: list[str],
    text: Sequence[str],
    *,
    numbers: bool = True,
    missing: bool = False,
) -> dict[str, NDArray[Any]]:
    """Read columns as strings, without those whose first cell is a number if `numbers`.

    Empty cells are refused unless values may be `missing`.
    """
    places: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    # Equal strings are one object.
    same: dict[str, str] = {}
    for block in _blocks(path, header) if text else ():
        if not found:
            first = {name: block[0][header.index(name)].strip() for name in text}
            places = {
                name: header.index(name)
                for name in text
                if not numbers or (first[name] and not _is_number(first[name]))
            }
            found = {name: [] for name in places}
        if not places:
            break
        for name, place in places.items():
            cells = [row[place].strip() for row in block]
            if "" in cells and not missing:
                where = f"row {len(found[name]) + cells.index('')}"
                raise ValueError(
                    f"{path}: column {name!r} has an empty cell at {where}; fill it or drop its row"
                )
            found[name] += [same.setdefault(cell, cell) for cell in cells]
    return {name: np.array(cells, dtype=object) for name, cells in found.items()}


def write(handle: BinaryIO, arrays: Mapping[str, NDArray[Any]], delimiter: str = ",") -> None:
    """Write numbers that are restored exactly; bool as 0 and 1."""
    check_table(arrays)
    header, columns = [], []
    for name, array in arrays.items():
        values = array.astype(np.uint8) if array.dtype.kind == "b" else array
        header += [name] if array.ndim == 1 else [f"{name}_{i}" for i in range(array.shape[1])]
        columns += [values] if array.ndim == 1 else list(values.T)
    text = io.TextIOWrapper(handle, encoding="utf-8", newline="")
    writer = _writer(text, header, delimiter)
    for start in range(0, len(columns[0]), ROWS):
        block = [column[start : start + ROWS].tolist() for column in columns]
        writer.writerows(zip(*block, strict=True))
    text.flush()
    # The caller still has to sync and close the handle.
    text.detach()


def _writer(text: io.TextIOWrapper, header: Sequence[str], delimiter: str) -> Any:
    """Write the header line, which tells the delimiter: others in names are quoted."""
    others = set(DELIMITERS) - {delimiter}
    plain = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    quoted = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    (quoted if others & set("".join(header)) else plain).writerow(header)
    return plain


def _opened(path: Path) -> TextIO:
    return open(path, encoding="utf-8-sig", newline="")


def _header(path: Path, handle: TextIO) -> tuple[list[str], str]:
    """Read column names and delimiter; the handle is then at the first line of the body."""
    try:
        lines = _short_lines(path, handle)
        first = next(lines, "")
        unquoted = re.sub('"[^"]*"', "", first)
        order = DELIMITERS[::-1] if path.suffix.lower() == ".tsv" else DELIMITERS
        delimiter = next((each for each in order if each in unquoted), order[0])
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        header = next(reader, [])
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except csv.Error as error:
        raise ValueError(f"{path}: cannot read the header line: {one_line(error)}") from error
    header = [name.strip() for name in header]
    if not any(header):
        raise ValueError(
            f"{path} has no header line; expected column names such as logits_0,labels"
        )
    return header, delimiter


def _short_lines(path: Path, handle: TextIO) -> Iterator[str]:
    while line := handle.readline(MAX_HEADER):
        if len(line) == MAX_HEADER:
            raise ValueError(f"{path}: the header line is longer than {MAX_HEADER} characters")
        yield line


def _not_utf8(path: Path) -> ValueError:
    return ValueError(f"{path} is not UTF-8 text; save it with that encoding")


def _body(
    path: Path, handle: TextIO, header: list[str], columns: set[str], delimiter: str
) -> dict[str, NDArray[np.float64]]:
    """Parse the rows; other columns are only counted."""
    # One field for each run of adjacent columns: numpy is slow with many fields.
    runs = [(key, list(group)) for key, group in groupby(header, columns.__contains__)]
    dtype = [(f"r{i}", "f8" if key else "U1", (len(run),)) for i, (key, run) in enumerate(runs)]
    try:
        first = next((line for line in handle if line.strip("\r\n")), None)
        if first is None:
            return {column: np.empty(0) for column in columns}
        lines = chain([first], handle)
        table = np.loadtxt(
            lines, dtype=dtype, delimiter=delimiter, quotechar='"', comments=None, ndmin=1
        )
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except ValueError as error:
        raise _explained(path, header, columns, delimiter, error) from error
    return {
        column: table[f"r{i}"][:, j]
        for i, (key, run) in enumerate(runs)
        if key
        for j, column in enumerate(run)
    }


def _explained(
    path: Path, header: list[str], columns: set[str], delimiter: str, error: ValueError
) -> ValueError:
    """Read again, slowly, to locate the error."""
    empty: dict[str, list[int]] = {}
    with _opened(path) as handle:
        reader = csv.reader(handle, delimiter=delimiter)
        try:
            next(reader)
            for row, cells in enumerate(filter(None, reader)):
                where = f"{path}: row {row} (line {reader.line_num})"
                if len(cells) != len(header):
                    return ValueError(f"{where} has {len(cells)} cells, header has {len(header)}")
                for column, cell in zip(header, cells, strict=True):
                    if column not in columns:
                        continue
                    if not cell.strip():
                        empty.setdefault(column, []).append(row)
                    elif not _is_number(cell):
                        shown = f"{one_line(cell, 40)!r} is not a number"
                        if DECIMAL_COMMA.fullmatch(cell.strip()):
                            shown += "; write decimals with a point, not with a comma"
                        return ValueError(f"{where}, column {column!r}: {shown}")
        except (csv.Error, UnicodeDecodeError) as other:
            return ValueError(f"{path}: {one_line(other)}")
    for column, rows in empty.items():
        return ValueError(
            f"{path}: column {column!r} has {len(rows)} empty cells (first at row {rows[0]}); "
            "fill them or drop their rows"
        )
    return ValueError(f"{path}: {one_line(error)}")


def _is_number(cell: str) -> bool:
    # Python also accepts 1_000 and non-ASCII digits.
    if "_" in cell or not cell.isascii():
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True
