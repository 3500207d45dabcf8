"""`on_engine(name, rows)`: the same rows on each engine, as a table of Ibis."""

import warnings

import ibis
import pytest
from engines import (
    JAVA_FOR_SPARK,
    PostgresServer,
    java_version,
    postgres_programs,
    rows_in_duckdb,
    rows_in_polars,
    rows_in_postgres,
    rows_in_spark,
    spark_session,
)


@pytest.fixture(scope="session")
def postgres():
    """Return a connection to a new server; it ends with the tests of this process."""
    pytest.importorskip("psycopg", reason="no psycopg: pip install 'psycopg[binary]'")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    server = PostgresServer(programs)
    connection = server.connect()
    yield connection
    connection.disconnect()
    server.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """Return a connection to a local Spark, and a folder that it reads."""
    pytest.importorskip("pyspark", reason="no pyspark: pip install 'pyspark>=4,<4.1'")
    if java_version() < JAVA_FOR_SPARK:
        pytest.skip(f"no Java {JAVA_FOR_SPARK} for Spark: apt-get install openjdk-17-jre-headless")
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(folder)
    yield ibis.pyspark.connect(session), folder
    with warnings.catch_warnings():  # the last test may be one that knows nothing of Spark
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()


@pytest.fixture
def on_engine(request):
    """Return a function of an engine's name and an arrow table: the same rows on that engine."""

    def load(name, rows):
        if name == "duckdb":
            return rows_in_duckdb(ibis.duckdb.connect(), rows)
        if name == "polars":
            return rows_in_polars(ibis.polars.connect(), rows)
        if name == "postgres":
            return rows_in_postgres(request.getfixturevalue("postgres"), rows)
        return rows_in_spark(*request.getfixturevalue("spark"), rows)

    return load
