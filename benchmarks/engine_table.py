"""One table on four engines; `python -m benchmarks.engine_table` rewrites it in docs/tables.md."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.inputs import SEED
from benchmarks.pages import machine, table
from benchmarks.real_data import ROOT
from calibrant import Predictions, metrics, tables

ROWS, CLASSES = 100_000, 5
NAMES = ("accuracy", "nll", "brier", "ece", "mce", "rmsce", "debiased_ece", "classwise_ece")
NAMES += ("overconfidence", "adaptive_ece")
PAGE = ROOT / "docs" / "tables.md"
START, END = "<!-- four engines: begin -->", "<!-- four engines: end -->"


def main() -> int:
    """Load the rows into each engine, audit them, and write the table."""
    import ibis
    import pyarrow as pa

    # The servers are those of the tests.
    sys.path.insert(0, str(ROOT / "tests" / "tables"))
    import engines

    generator = np.random.default_rng(SEED)
    logits = generator.normal(0, 2, (ROWS, CLASSES))
    labels = (0.8 * logits + generator.gumbel(size=logits.shape)).argmax(1)
    rows = pa.table({f"z{k}": logits[:, k] for k in range(CLASSES)} | {"label": labels})
    predictions = Predictions(logits, labels)
    values = {"Predictions": {name: metrics.METRICS[name](predictions) for name in NAMES}}
    took = {"Predictions": ""}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        programs = engines.postgres_programs()
        if programs is None:
            raise RuntimeError("no PostgreSQL server: apt-get install postgresql")
        server = engines.PostgresServer(programs)
        stack.callback(server.close)
        session = engines.spark_session(folder)
        stack.callback(session.stop)
        held = {
            "DuckDB": engines.rows_in_duckdb(ibis.duckdb.connect(), rows),
            "Polars": engines.rows_in_polars(ibis.polars.connect(), rows),
            "PostgreSQL": engines.rows_in_postgres(server.connect(), rows),
            "Spark": engines.rows_in_spark(ibis.pyspark.connect(session), folder, rows),
        }
        for engine, each in held.items():
            tables.audit(each, draws=0)
            start = time.perf_counter()
            found = tables.audit(each, draws=0).metrics
            took[engine] = f"{time.perf_counter() - start:.2g} s"
            values[engine] = {name: found[name].value for name in NAMES}
    exact = values["Predictions"]
    lines = [[name, *(f"{each[name]:.12f}" for each in values.values())] for name in NAMES]
    # Equal-mass bins of tables are formed from cells, so they are compared with those of DuckDB.
    base = {**exact, "adaptive_ece": values["DuckDB"]["adaptive_ece"]}
    differences = [max(abs(each[n] - base[n]) for n in NAMES) for each in values.values()]
    lines.append(["largest difference", "", *(f"{each:.0e}" for each in differences[1:])])
    lines.append(["time", *took.values()])
    about = f"{ROWS:,} rows, logits of {CLASSES} classes, seed {SEED}; {machine()}."
    text = f"{START}\n{about}\n\n{table(['metric', *values], lines)}\n{END}"
    print(text)
    before = PAGE.read_text()
    head, rest = before.split(START)
    PAGE.write_text(head + text + rest.split(END)[1])
    return 0 if max(differences[1:]) < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
