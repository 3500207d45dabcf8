"""Open a table where it is: files by DuckDB or Polars, databases and clusters by their URL."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urldefrag

from calibrant.extras import need
from calibrant.files import expand

if TYPE_CHECKING:
    import ibis

Engine = Literal["duckdb", "polars"]
ENGINES: tuple[Engine, ...] = ("duckdb", "polars")
ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"}
# Larger files are not loaded into memory unless asked: an array takes up to 8 times its file there.
LARGE = 256 * 2**20


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
        if each.suffix.lower() in ENDINGS and each.is_file() and each.name[0] not in "._"
    )
    if not found:
        raise FileNotFoundError(f"no parquet or csv files in folder {source}")
    return found


def is_large(source: str) -> bool:
    """Whether `audit` reads a source through DuckDB by itself.

    A folder always, and parquet or csv files of more than 256 MB in total.
    """
    if is_url(source) or Path(source).is_dir():
        return True
    try:
        files = expand(source)
    except OSError:
        return False
    if any(each.suffix.lower() not in ENDINGS for each in files):
        return False
    return sum(each.stat().st_size for each in files) > LARGE


@contextmanager
def engine_errors(source: str) -> Iterator[None]:
    """Turn an error of an engine into one line that names the source."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(lines[:2]) or type(error).__name__
        raise ValueError(f"{source}: {type(error).__name__}: {said[:400]}") from error


def open_table(source: str, *, engine: Engine = "duckdb", sql: str | None = None) -> "ibis.Table":
    """Open a table of predictions.

    Args:
        source: a file, folder or glob pattern of parquet or csv files; or the URL of a database
            with the name of a table, `postgres://user@host/db#predictions`. `spark://host:port`
            and `local[2]` as `spark://local[2]` start a Spark session; any backend of Ibis works.
        engine: which engine reads files.
        sql: a query whose result is the table; in files the table is called `predictions`.
    """
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    with engine_errors(source):
        if not is_url(source):
            return _of_files(ibis, source, engine, sql)
        address, name = urldefrag(source)
        connection = _spark(ibis, address) if address.startswith("spark://") else None
        connection = connection or ibis.connect(address)
        if sql is not None:
            return connection.sql(sql)
        if not name:
            raise ValueError(f"{source}: name the table after #, as in {address}#predictions")
        schema, _, table = name.rpartition(".")
        return connection.table(table, database=schema or None)


def _of_files(ibis: Any, source: str, engine: Engine, sql: str | None) -> "ibis.Table":
    if engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}; use one of {', '.join(ENGINES)}")
    files = table_files(source)
    kinds = {ENDINGS.get(each.suffix.lower()) for each in files}
    if None in kinds or len(kinds) > 1:
        raise ValueError(f"{source}: tables are read from parquet or csv files, all of one kind")
    check_schemas(files)
    connection = ibis.duckdb.connect() if engine == "duckdb" else ibis.polars.connect()
    paths: list[str] | str = [os.fspath(each) for each in files]
    reading: dict[str, Callable[..., Any]] = {
        "parquet": connection.read_parquet,
        "csv": connection.read_csv,
    }
    table = reading[kinds.pop() or ""](
        paths if len(files) > 1 else paths[0], table_name="predictions"
    )
    return table if sql is None else connection.sql(sql)


def _spark(ibis: Any, address: str) -> Any:
    session = need("pyspark.sql", extra="tables", what="a Spark cluster").SparkSession
    master = address.removeprefix("spark://")
    master = master if master.startswith("local") else address
    return ibis.pyspark.connect(session.builder.master(master).getOrCreate())


def check_schemas(files: list[Path]) -> None:
    """Refuse parquet files that are damaged, or whose columns differ from those of the first."""
    from calibrant.files.checks import listed

    first: dict[str, str] = {}
    for path in files:
        if ENDINGS.get(path.suffix.lower()) != "parquet":
            continue
        schema = parquet_schema(path)
        first = first or schema
        if schema != first:
            name = next(n for n in [*first, *schema] if first.get(n) != schema.get(n))
            raise ValueError(
                f"{path}: column {name} is {schema.get(name, 'absent')}, but "
                f"{first.get(name, 'absent')} in {files[0]}; columns: {listed(sorted(schema))}"
            )


def parquet_schema(path: Path) -> dict[str, str]:
    """Column to type of a parquet file; an error names the file."""
    parquet = need("pyarrow.parquet", extra="tables", what="reading parquet files")
    try:
        schema = parquet.read_schema(path)
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"{path} is damaged or not a parquet file: {said}") from error
    return {each.name: str(each.type) for each in schema}
