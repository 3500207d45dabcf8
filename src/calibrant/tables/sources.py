"""Open a table where it is: files by DuckDB or Polars, databases and clusters by their URL."""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrant.advice import InputError
from calibrant.extras import need
from calibrant.files import expand
from calibrant.files.checks import listed

if TYPE_CHECKING:
    import ibis

Engine = Literal["duckdb", "polars"]
ENGINES: tuple[Engine, ...] = ("duckdb", "polars")
ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"}
# Larger files are not loaded into memory unless asked: arrays take several times as much there.
LARGE = 256 * 2**20
# DuckDB sums keys of so many bits without hashing.
PERFECT_HASH_BITS = 18
# Name of the table of files in a query.
TABLE = "predictions"
# Bytes of the first line of a csv file.
MOST_HEADER = 1 << 20


@dataclass(frozen=True)
class Source:
    """An open table, and what the reader should know of it.

    Attributes:
        table: the table.
        files: its files; none for a database.
        skipped: files that were left out, with the reason.
    """

    table: "ibis.Table"
    files: tuple[Path, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of files that were left out."""
        if not self.skipped:
            return ()
        total = len(self.files) + len(self.skipped)
        more = "; ..." if len(self.skipped) > 5 else ""
        why = "; ".join(self.skipped[:5]) + more
        return (f"{len(self.skipped):,} of {total:,} files left out: {why}.",)


def is_url(source: str) -> bool:
    """Whether a source is a database or a cluster, not a file."""
    return "://" in source


def table_files(source: str) -> list[Path]:
    """Files of a path, folder or glob pattern that tables are read from, sorted by name."""
    path = Path(source)
    if not path.is_dir():
        return expand(source)
    found = sorted(
        each
        for each in path.rglob("*")
        if each.suffix.lower() in ENDINGS
        and not any(part[0] in "._" for part in each.relative_to(path).parts)
        and each.is_file()
    )
    if not found:
        raise FileNotFoundError(f"no parquet or csv files in folder {source}")
    return found


def is_large(source: str) -> bool:
    """Whether `audit` reads a source through DuckDB by itself.

    Folders and databases always; a parquet or csv file, or a glob pattern, of more than 256 MB.
    """
    if is_url(source) or Path(source).is_dir():
        return True
    if not (has_magic(source) or Path(source).is_file()):
        return False
    files = expand(source)
    if any(each.suffix.lower() not in ENDINGS for each in files):
        return False
    return sum(each.stat().st_size for each in files) > LARGE


@contextmanager
def engine_errors(source: str) -> Iterator[None]:
    """Turn an error of an engine into one line that names the source."""
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError):
        raise
    except ImportError as error:
        if not is_url(source):
            raise
        name = source.partition("://")[0]
        name = {"spark": "pyspark", "postgresql": "postgres"}.get(name, name)
        advice = f"pip install 'ibis-framework[{name}]'"
        raise ImportError(f"{source}: the backend {name} is not installed: {advice}") from error
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"{source}: the engine failed: {kind}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1]).rstrip(".")[:400] or type(error).__name__


def open_table(
    source: str | Sequence[str],
    *,
    engine: Engine = "duckdb",
    sql: str | None = None,
    text: Sequence[str] = (),
) -> "ibis.Table":
    """Open a table of predictions.

    Args:
        source: a file, folder or glob pattern of parquet or csv files, or several of these; or the
            URL of a database with the name of a table, `postgres://user@host/db#predictions`.
            `spark://host:port#table` and `spark://local[2]#table` use a Spark session. Any backend
            of Ibis works.
        engine: which engine reads files.
        sql: a query whose result is the table; files are the table `predictions` there.
        text: columns of csv files to read as text, such as times of which some have a time zone.
    """
    return open_source(source, engine=engine, sql=sql, text=text).table


def open_source(
    source: str | Sequence[str],
    *,
    engine: Engine = "duckdb",
    sql: str | None = None,
    text: Sequence[str] = (),
    keep_going: bool = False,
) -> Source:
    """Open a table as `open_table` does; `keep_going` leaves out damaged files."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    sources = [source] if isinstance(source, str) else list(source)
    name = sources[0]
    with engine_errors(hide_password(name)):
        if not any(map(is_url, sources)):
            return _of_files(ibis, sources, engine, sql, text, keep_going)
        if len(sources) > 1:
            raise ValueError("give one database at a time")
        address, _, table = name.partition("#")
        connection = _spark(ibis, address) if address.startswith("spark://") else None
        connection = connection or _connected(ibis, address)
        if sql is not None:
            return Source(connection.sql(sql))
        if not table:
            shown = hide_password(address)
            raise ValueError(f"{shown}: name the table after #, as in {shown}#{TABLE}")
        schema, _, table = table.rpartition(".")
        return Source(connection.table(table, database=schema or None))


def hide_password(source: str) -> str:
    """A source as it may be shown.

    >>> hide_password("postgres://ann:secret@db/x#t")
    'postgres://ann@db/x#t'
    """
    scheme, found, rest = source.partition("://")
    if not found:
        return source
    user, at, host = rest.rpartition("@")
    return re.sub(
        r"(password|pwd|token|secret)=[^&#]*",
        r"\1=...",
        f"{scheme}://{user.partition(':')[0] + at}{host}",
        flags=re.IGNORECASE,
    )


def _of_files(
    ibis: Any,
    sources: Sequence[str],
    engine: Engine,
    sql: str | None,
    text: Sequence[str],
    keep_going: bool,
) -> Source:
    if engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}; use one of {', '.join(ENGINES)}")
    files = list(dict.fromkeys(path for each in sources for path in table_files(each)))
    kinds = {ENDINGS.get(each.suffix.lower()) for each in files}
    if None in kinds or len(kinds) > 1:
        shown = listed(sorted({each.suffix or each.name for each in files}))
        raise ValueError(
            "slices, time and other options of tables need parquet or csv files, all of one kind; "
            f"got {shown}"
        )
    files, skipped = checked_files(files, keep_going=keep_going)
    if engine == "duckdb":
        connection = ibis.duckdb.connect()
        connection.raw_sql(f"SET perfect_ht_threshold = {PERFECT_HASH_BITS}")
    else:
        connection = ibis.polars.connect()
    paths = [os.fspath(each) for each in files]
    reading, options = connection.read_parquet, {}
    if kinds == {"csv"}:
        reading, options = connection.read_csv, _as_text(engine, files[0], text)
    table = reading(paths if len(paths) > 1 else paths[0], table_name=TABLE, **options)
    table = table if sql is None else connection.sql(sql)
    return Source(table, tuple(files), tuple(skipped))


def _as_text(engine: Engine, first: Path, names: Sequence[str]) -> dict[str, Any]:
    """Options of an engine that reads csv files, some columns of them as text."""
    found = [name for name in names if name in file_schema(first)]
    if engine == "duckdb":
        return {"types": dict.fromkeys(found, "VARCHAR")} if found else {}
    polars = need("polars", extra="tables", what="the engine polars")
    overrides = dict.fromkeys(found, polars.String)
    # DuckDB finds the delimiter itself.
    return {"schema_overrides": overrides, "separator": _delimiter(_first_row(first))}


def _connected(ibis: Any, address: str) -> Any:
    try:
        return ibis.connect(address)
    except ValueError as error:
        # The message of Ibis has the whole address, also its password.
        shown = hide_password(address)
        raise ValueError(f"{shown}: no backend of Ibis opens this address") from error


def _spark(ibis: Any, address: str) -> Any:
    from pyspark.sql import SparkSession

    master = address.removeprefix("spark://")
    master = master if master.startswith("local") else address
    return ibis.pyspark.connect(SparkSession.builder.master(master).getOrCreate())


def checked_files(
    files: Sequence[Path], *, keep_going: bool = False, deep: bool = False
) -> tuple[list[Path], list[str]]:
    """Files that can be read, and why others were left out; refuses columns that differ.

    Args:
        files: the files.
        keep_going: leave out damaged files instead of refusing all.
        deep: decode every page of parquet files, too; otherwise the footers alone.
    """
    first: tuple[Path, dict[str, str]] | None = None
    good, skipped = [], []
    for path in files:
        try:
            schema = file_schema(path, deep=deep)
        except ValueError as error:
            if not keep_going:
                advice = "leave it out with keep_going=True", "leave it out with --keep-going"
                raise InputError(str(error), *advice) from error
            skipped.append(str(error))
            continue
        first = first or (path, schema)
        if schema != first[1]:
            name = next(n for n in [*first[1], *schema] if first[1].get(n) != schema.get(n))
            problem = (
                f"{path}: column {name} is {schema.get(name, 'absent')}, but "
                f"{first[1].get(name, 'absent')} in {first[0]}: give all files the same columns"
            )
            if not keep_going:
                raise ValueError(problem)
            skipped.append(problem)
            continue
        good.append(path)
    if not good:
        raise ValueError(f"no file can be read: {listed(skipped, 3)}")
    return good, skipped


def file_schema(path: Path, *, deep: bool = False) -> dict[str, str]:
    """Column to type of a file (of csv files, columns only); an error names the file."""
    if ENDINGS[path.suffix.lower()] == "csv":
        line = _first_row(path)
        return dict.fromkeys(next(csv.reader([line], delimiter=_delimiter(line))), "a column")
    parquet = need("pyarrow.parquet", extra="tables", what="reading parquet files")
    try:
        schema = parquet.read_schema(path)
        if deep:
            with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
                for batch in opened.iter_batches(1 << 16):
                    batch.validate(full=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged or no parquet file: {_first_line(error)}") from error
    return {each.name: str(each.type) for each in schema}


def _first_row(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as handle:
        line = handle.readline(MOST_HEADER)
    if not line.strip():
        raise ValueError(f"{path} is empty")
    return line


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)
