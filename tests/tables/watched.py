"""Streams of predictions for the tests of `watch`: days of known calibration, as files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = np.datetime64("2026-01-01")


def day(number, *, rows=200, shift=0.0, labels=True, seed=None):
    """Rows of one day as an arrow table; the true logit is the predicted one plus the shift."""
    rng = np.random.default_rng(number if seed is None else seed)
    confidence = rng.beta(8, 1, rows)
    truth = 1 / (1 + np.exp(-shift) * (1 - confidence) / confidence)
    correct = (rng.random(rows) < truth).astype(np.int64)
    seconds = np.sort(rng.integers(0, 86400, rows)).astype("timedelta64[s]")
    times = START + np.timedelta64(number, "D") + seconds
    known = correct if labels else [None] * rows
    return pa.table(
        {
            "confidence": confidence,
            "correct": pa.array(known, pa.int64()),
            "ts": pa.array(times.astype("datetime64[us]")),
        }
    )


def deliver(folder, number, name=None, **options):
    """Write a day as a file; returns its path."""
    path = folder / (name or f"day-{number:02}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(day(number, **options), path)
    return path
