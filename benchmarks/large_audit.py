"""`calibrant audit` of five million rows with intervals, page and figure: time and peak memory."""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from benchmarks.inputs import SEED
from benchmarks.measure import Section, seconds
from calibrant import Predictions
from calibrant.metrics import metrics_for
from calibrant.metrics.resampling import samples
from calibrant.metrics.resampling.intervals import intervals

ROWS, CLASSES = 5_000_000, 10
# Of the comparison with a full bootstrap, which takes long.
FEW, RESAMPLES = 200_000, 100
ABOUT = f"""One command audits a parquet file of {ROWS:,} rows: all metrics with intervals, tests,
the next step, a figure and a page. Time and peak memory are those of its whole process, which
starts Python and imports torch. In the last row, the other is the bootstrap that draws every
example on its own, as calibrant does up to 20,000 examples."""
# Name of the file to the options that read it.
FILES = {
    "confidence and correctness": ["--confidence", "confidence"],
    "one score of two classes": ["--probs", "score"],
    f"{CLASSES} probabilities": [],
}


def columns(kind: str) -> dict[str, np.ndarray]:
    """Draw the columns of a file; labels are drawn from flatter probabilities than the scores."""
    generator = np.random.default_rng(SEED)
    if kind == "one score of two classes":
        odds = generator.normal(-1.5, 2, ROWS)
        positive = generator.random(ROWS) < 1 / (1 + np.exp(-0.8 * odds))
        score = (1 / (1 + np.exp(-odds))).astype(np.float32)
        return {"score": score, "label": positive.astype(np.int8)}
    logits = generator.normal(0, 2, (ROWS, CLASSES)).astype(np.float32)
    noise = generator.gumbel(size=logits.shape).astype(np.float32)
    labels = (0.8 * logits + noise).argmax(1)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    if kind == "confidence and correctness":
        return {"confidence": probs.max(1), "correct": probs.argmax(1) == labels}
    return {**{f"p{i}": probs[:, i] for i in range(CLASSES)}, "label": labels}


def audited(kind: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak memory, in GB, of the audit of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns(kind)), path)
    command = [sys.executable, "-m", "calibrant", "audit", str(path), *FILES[kind]]
    start = time.perf_counter()
    process = os.posix_spawn(
        sys.executable,
        [*command, "--page", str(folder / "p.html"), "--figure", str(folder / "f.png")],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"the audit of {kind} failed")
    return time.perf_counter() - start, used.ru_maxrss / 1e6


def resampled(large: int) -> float:
    """Seconds of all intervals of two classes, if more than `large` examples are merged."""
    drawn = columns("one score of two classes")
    some = Predictions.from_binary(drawn["score"][:FEW], drawn["label"][:FEW], kind="probs")
    chosen = {name: metric.function for name, metric in metrics_for(2).items()}
    with patch.object(samples, "LARGE", large):
        return seconds(lambda: intervals(chosen, some, resamples=RESAMPLES))


def run() -> Section:
    """Audit each file in a process of its own."""
    section = Section(f"Audit of {ROWS:,} rows", ABOUT)
    for kind in FILES:
        with TemporaryDirectory() as folder:
            took, memory = audited(kind, Path(folder))
        if kind == f"{CLASSES} probabilities":
            section.note(f"time, {kind}", took, "s")
            section.note(f"memory, {kind}", memory, "GB")
        else:
            section.below(f"time, {kind}", took, "s", goal=20)
            section.below(f"memory, {kind}", memory, "GB", goal=1.5)
    what = f"{RESAMPLES} resamples of {FEW:,} scores, all metrics"
    section.faster(what, resampled(samples.LARGE), resampled(ROWS), at_least=10)
    return section
