"""Sums per bin over a long stream: speed, flat memory, and the value of one array."""

import time

import numpy as np

from benchmarks.inputs import SEED
from benchmarks.measure import Section, in_fresh_process, resident
from calibrant.metrics import BinSums

ROWS = 20_000_000
BATCH = 100_000
PREFIX = 1_000_000
ABOUT = f"""A fresh process adds up batches of {BATCH:,} generated rows, for 15 equal-width bins
and for the fine grid of equal-mass bins. Memory growth is measured from row {PREFIX:,} to the end.
The speed includes generating the rows."""


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw one batch; the same number gives the same rows."""
    generator = np.random.default_rng([SEED, number])
    confidence = generator.beta(5.0, 1.0, BATCH)
    return confidence, (generator.random(BATCH) < confidence).astype(np.float64)


def stream() -> list[float]:
    """Add up all batches; give rows a second, memory growth, and differences from one array."""
    total, grid = BinSums.zero(15), BinSums.on_grid(np.empty(0), np.empty(0))
    start = time.perf_counter()
    before = highest = 0.0
    differences: list[float] = []
    for number in range(ROWS // BATCH):
        rows = batch(number)
        total += BinSums.of_confidence(*rows)
        grid += BinSums.on_grid(*rows)
        if (number + 1) * BATCH == PREFIX:
            paused = time.perf_counter()
            differences = _against_one_array(total, grid)
            before = highest = resident()
            start += time.perf_counter() - paused
        highest = max(highest, resident())
    speed = ROWS / (time.perf_counter() - start)
    return [speed, highest - before, *differences]


def _against_one_array(total: BinSums, grid: BinSums) -> list[float]:
    drawn = [batch(number) for number in range(PREFIX // BATCH)]
    rows = [np.concatenate(part) for part in zip(*drawn, strict=True)]
    once, once_grid = BinSums.of_confidence(*rows), BinSums.on_grid(*rows)
    return [
        abs(total.ece - once.ece),
        abs(grid.equal_mass(15).ece - once_grid.equal_mass(15).ece),
    ]


def run() -> Section:
    """Run the stream in a process of its own."""
    section = Section("Streaming", ABOUT)
    speed, growth, width, mass = in_fresh_process("benchmarks.streaming")
    section.note(f"{ROWS:,} rows", speed, "rows/s")
    section.below("growth of memory", growth, "MB", goal=20)
    section.below(f"ECE, stream against one array of {PREFIX:,}", width, "", goal=1e-9)
    section.below("equal-mass ECE, stream against one array", mass, "", goal=1e-9)
    return section


if __name__ == "__main__":
    print(*stream())
