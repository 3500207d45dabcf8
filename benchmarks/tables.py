"""Audits of tables in DuckDB: hand-written queries, growth, slices, memory, before and after."""

# ruff: noqa: S608, the queries are ours

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.inputs import SEED
from benchmarks.large_audit import columns as five_million
from benchmarks.measure import Line, Section, in_pairs
from calibrant import tables

MILLION = 1_000_000
ROWS, CLASS_ROWS, SLICE_ROWS, CLASSES, SLICES = 50 * MILLION, 10 * MILLION, 50 * MILLION, 10, 1000
PART = MILLION
ABOUT = f"""Parquet files that DuckDB reads with two threads; every file is read once before it is
timed. Ours is `tables.audit` from the opening of the file to all metrics with intervals and the
test. The bare `GROUP BY` counts rows and sums confidence and correctness of 15 bins; the second one
also sums squares and products, which intervals need. The hand-written query of {CLASSES}
probabilities sums the same: bins of the top label and of every class, NLL and Brier score. Before
and after are `calibrant audit` as a whole process, which starts Python: in memory (as before),
then with `--engine duckdb`, both with intervals and page."""
BARE = """SELECT CAST(ceil(confidence * 15) AS INTEGER) AS bin, count(*), sum(confidence),
  sum(CAST(correct AS INTEGER)) FROM '{path}' GROUP BY bin"""
SQUARES = """SELECT CAST(ceil(confidence * 15) AS INTEGER) AS bin, count(*), sum(confidence),
  sum(CAST(correct AS INTEGER)), sum(confidence * confidence),
  sum(confidence * CAST(correct AS INTEGER)) FROM '{path}' GROUP BY bin"""


# A small process starts the command, because peak memory counts that of the process before.
CHILD = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9)"""


def by_hand(path: Path) -> str:
    """Sums per bin of the top label and of each class, as one would write them."""
    scores = [f"p{k}" for k in range(CLASSES)]
    own = "CASE label " + " ".join(f"WHEN {k} THEN p{k}" for k in range(CLASSES)) + " END"
    first = "CASE " + " ".join(f"WHEN p{k} = top THEN {k}" for k in range(CLASSES)) + " END"
    squares = " + ".join(f"{p} * {p}" for p in scores)
    values = f"[top, {', '.join(scores)}]"
    steps = [
        f"a AS (SELECT *, greatest({', '.join(scores)}) AS top, {own} AS own FROM '{path}')",
        f"b AS (SELECT *, {first} = label AS hit, -ln(own) AS nll,"
        f" {squares} + 1 - 2 * own AS brier FROM a)",
        f"c AS (SELECT unnest({values}) AS value, generate_subscripts({values}, 1) - 1 AS part,"
        " hit, label, nll, brier FROM b)",
    ]
    hit = "CAST(CASE WHEN part = 0 THEN hit ELSE label = part - 1 END AS INTEGER)"
    sums = f"count(*), sum(value), sum({hit}), sum(value * value), sum(nll), sum(brier)"
    query = f"SELECT part, CAST(ceil(value * 15) AS INTEGER) AS bin, {sums} FROM c GROUP BY ALL"
    return f"WITH {', '.join(steps)} {query}"


def confidences(rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Over-confident predictions, with a column of slices."""
    generator = np.random.default_rng(SEED)
    for _ in range(0, rows, PART):
        confidence = generator.beta(5, 1.2, PART)
        yield {
            "confidence": confidence,
            "correct": generator.random(PART) < confidence**1.1,
            "slice": generator.integers(0, SLICES, PART).astype(np.int32).astype(str),
            "one": np.full(PART, "all"),
        }


def probabilities(rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Probabilities of ten classes; labels are drawn from flatter ones."""
    generator = np.random.default_rng(SEED)
    for _ in range(0, rows, PART):
        logits = generator.normal(0, 2, (PART, CLASSES))
        labels = (0.8 * logits + generator.gumbel(size=logits.shape)).argmax(1)
        probs = np.exp(logits)
        probs /= probs.sum(1, keepdims=True)
        yield {**{f"p{k}": probs[:, k] for k in range(CLASSES)}, "label": labels}


def write(path: Path, parts: Iterator[dict[str, Any]]) -> Path:
    """Write a parquet file part by part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for part in parts:
        table = pa.table(part)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return path


def engine(query: str) -> Callable[[], object]:
    """Run a query in a new DuckDB, as ours does: an old one keeps parts of the file in memory."""
    import duckdb

    return lambda: duckdb.connect().sql(query).fetchall()


def process(*arguments: str) -> tuple[float, float, float]:
    """Seconds, seconds of all cores, and peak memory in GB of a command of calibrant."""
    command = [sys.executable, "-c", CHILD, sys.executable, "-m", "calibrant", *arguments]
    start = time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    took = time.perf_counter() - start
    cpu, memory = (float(each) for each in printed.splitlines()[-1].split())
    return took, cpu, memory


def run() -> Section:
    """Measure everything; the files are written to a temporary folder, 2 GB in all."""
    section = Section("Tables in DuckDB", ABOUT)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _confidence(section, folder)
        _slices(section, folder / "large.parquet")
        (folder / "large.parquet").unlink()
        wide = write(folder / "wide.parquet", probabilities(CLASS_ROWS))
        ours, other = in_pairs(lambda: audited(wide), engine(by_hand(wide)), repeats=3)
        what = f"{CLASS_ROWS // MILLION} million rows x {CLASSES} probabilities, hand-written query"
        section.times(what, ours, other, most=1.5)
        wide.unlink()
        _before_and_after(section, folder)
    return section


def audited(path: Path, **options: Any) -> object:
    """Open and audit a file."""
    return tables.audit(tables.open_table(str(path)), **options)


def _confidence(section: Section, folder: Path) -> None:
    large = write(folder / "large.parquet", confidences(ROWS))
    small = write(folder / "small.parquet", confidences(ROWS // 10))
    what = f"{ROWS // MILLION} million confidences"
    ours, other = in_pairs(lambda: audited(large), engine(BARE.format(path=large)), repeats=7)
    section.times(f"{what}, bare GROUP BY", ours, other, most=1.3)
    ours, other = in_pairs(lambda: audited(large), engine(SQUARES.format(path=large)), repeats=7)
    section.times(f"{what}, GROUP BY with squares", ours, other, most=None)
    ours, other = in_pairs(lambda: audited(large), lambda: audited(small), repeats=7)
    what = f"growth from {ROWS // 10 // MILLION} to {ROWS // MILLION} million rows"
    section.times(what, ours, other, most=11)

    memory = process("audit", str(large), "--page", str(folder / "p.html"))[2]
    section.below(f"memory of the process, {ROWS // MILLION} million rows", memory, "GB", goal=1)


def _slices(section: Section, path: Path) -> None:
    ours, other = in_pairs(
        lambda: audited(path, by=["slice"]), lambda: audited(path, by=["one"]), repeats=3
    )
    what = f"{SLICES:,} slices of {SLICE_ROWS // MILLION} million rows, against one slice"
    section.times(what, ours, other, most=2)


def _before_and_after(section: Section, folder: Path) -> None:
    for kind in ("confidence and correctness", "10 probabilities"):
        path = folder / "five.parquet"
        write(path, iter([five_million(kind)]))
        common = ("audit", str(path), "--page", str(folder / "p.html"))
        before = process(*common, "--no-figure")
        after = process(*common, "--engine", "duckdb")
        named = f"5 million rows, {kind}, before and after"
        section.faster(f"{named}: time", after[0], before[0], at_least=None)
        section.faster(f"{named}: CPU time", after[1], before[1], at_least=None)
        ratio = before[2] / after[2]
        section.lines.append(
            Line(f"{named}: memory", after[2], before[2], "GB", f"{ratio:.1f}x less")
        )
