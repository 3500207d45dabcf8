"""Four engines that hold rows: DuckDB and Polars in this process, a PostgreSQL server, Spark."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# What PySpark 4.0 does while rows come back: an argument that pandas 4 drops, sockets left open.
SPARK_WARNS = (
    "ignore:The copy keyword is deprecated:Warning:pyspark.sql.pandas.types",
    "ignore:unclosed <socket:ResourceWarning",
)
POSTGRES = pytest.param("postgres", marks=pytest.mark.slow)
SPARK = pytest.param("pyspark", marks=[pytest.mark.slow, pytest.mark.filterwarnings(*SPARK_WARNS)])
ENGINES = ["duckdb", "polars", POSTGRES, SPARK]
JAVA_FOR_SPARK = 17
NUMBERS = count()


def name_of_table() -> str:
    return f"rows_{next(NUMBERS)}"


def rows_in_duckdb(connection, rows: pa.Table):
    # Not the rows themselves: Ibis 12 then drops a view whose name sqlglot 30.18 and later omit.
    return connection.create_table(name_of_table(), ibis.memtable(rows))


def rows_in_polars(connection, rows: pa.Table):
    return connection.create_table(name_of_table(), rows)


def rows_in_postgres(connection, rows: pa.Table):
    """COPY keeps nulls apart from NaN, and is faster than INSERT."""
    table = connection.create_table(name_of_table(), schema=ibis.Schema.from_pyarrow(rows.schema))
    columns = [column.to_pylist() for column in rows.columns]
    with connection.con.transaction(), connection.con.cursor() as cursor:
        with cursor.copy(f'COPY "{table.get_name()}" FROM STDIN') as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)
        cursor.execute(f'ANALYZE "{table.get_name()}"')
    return table


def rows_in_spark(connection, folder: Path, rows: pa.Table):
    """Through a file: Ibis would go through pandas, where a null is NaN."""
    name = name_of_table()
    pq.write_table(rows, folder / f"{name}.parquet", coerce_timestamps="us")
    return connection.read_parquet(str(folder / f"{name}.parquet"), table_name=name)


def postgres_programs() -> Path | None:
    """Return the folder of initdb and pg_ctl; Debian does not put it on the path."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve()] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return next((path.parent for path in found if (path.parent / "pg_ctl").exists()), None)


class PostgresServer:
    """A server of its own on a socket in a short folder; as root, run by the user `postgres`."""

    def __init__(self, programs: Path):
        self.programs = programs
        # The path of a socket has at most 107 characters: too few for a folder of pytest.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.owner = {}
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
            self.owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.data = self.folder / "data"
        self._run("initdb", "--username=tests", "--auth=trust", "--encoding=UTF8", "--no-locale")
        settings = f"-c listen_addresses='' -c fsync=off -k {self.folder}"
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def _run(self, program, *options):
        command = [self.programs / program, "-D", self.data, *options]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, **self.owner
        )
        if done.returncode:
            log = self.folder / "log"
            raise RuntimeError(done.stderr + (log.read_text() if log.exists() else ""))

    def connect(self):
        return ibis.postgres.connect(host=str(self.folder), user="tests", database="postgres")

    def close(self):
        self._run("pg_ctl", "-w", "-m", "fast", "stop")
        shutil.rmtree(self.folder)


def java_version() -> int:
    """Return the version of the Java that Spark would start, 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


def spark_session(folder: Path):
    """Start Spark in a process of this machine that nothing outside of it can reach."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("calibrant")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
