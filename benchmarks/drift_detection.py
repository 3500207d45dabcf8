"""False alarms and detection delays of drift tests on simulated streams; writes docs/drift.md.

Run with `python -m benchmarks.drift_detection`. It replaces what stands between the markers.
"""

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from benchmarks.pages import machine, table, versions
from calibrant.metrics import BinSums, cusum_threshold
from calibrant.metrics.betting import initial_log_wealth, next_log_wealth, total_log_wealth
from calibrant.metrics.bins import bin_edges, bin_index
from calibrant.metrics.control_charts import cusum_path, standardised_residual

PAGE = Path(__file__).parents[1] / "docs" / "drift.md"
BEGIN, END = "<!-- drift: begin -->", "<!-- drift: end -->"
SEED = 0
BINS = 15
LEVEL = 0.05
EXAMPLES = 200
STREAMS, WINDOWS = 10_000, 100
LONG_STREAMS, LONG_WINDOWS = 1_000, 1_000
DELAY_STREAMS, CHANGE = 1_000, 20
REFERENCE = 0.5
# Streams simulated at a time, to stay in cache.
CHUNK = 500
# Run lengths are nearly exponential: this one gives 5 % within 100 windows.
MATCHED = WINDOWS / -math.log1p(-LEVEL)
METHODS = {
    "e-process": math.log(1 / LEVEL),
    "z, uncorrected": float(stats.norm.isf(LEVEL / 2)),
    f"z, Bonferroni {WINDOWS}": float(stats.norm.isf(LEVEL / 2 / WINDOWS)),
    "CUSUM, ARL 370": cusum_threshold(370, reference=REFERENCE),
    f"CUSUM, ARL {MATCHED:.0f}": cusum_threshold(MATCHED, reference=REFERENCE),
}
QUANTILES = (np.arange(20_000) + 0.5) / 20_000
# Equally likely probabilities of each distribution.
CONFIDENCES = {
    "moderate: Beta(4, 2)": stats.beta(4, 2).ppf(QUANTILES),
    "confident: Beta(8, 1)": stats.beta(8, 1).ppf(QUANTILES),
    "both classes: Beta(0.5, 0.5)": stats.beta(0.5, 0.5).ppf(QUANTILES),
    "extreme: 0.97 to 0.99999": 1 - 10 ** (-1.5 - 3.5 * QUANTILES),
}
CONFIDENT, BOTH = "confident: Beta(8, 1)", "both classes: Beta(0.5, 0.5)"


@dataclass(frozen=True)
class Case:
    """Streams of one kind: the probabilities, and what is true after the change."""

    confidence: str
    kind: str = "calibrated"
    size: float = 0.0
    streams: int = STREAMS
    windows: int = WINDOWS
    change: int = 0

    def truth(self) -> np.ndarray:
        """True probability after the change, for each of the predicted ones."""
        p = CONFIDENCES[self.confidence]
        if self.kind == "temperature":
            return expit(logit(p) / self.size)
        if self.kind == "shift":
            return expit(logit(p) + self.size)
        if self.kind == "one bin":
            return np.where((p > 12 / 15) & (p <= 13 / 15), p + self.size, p)
        return p


def first_alarms(case: Case) -> dict[str, np.ndarray]:
    """Window of the first alarm of each stream and method; `windows` where there is none."""
    parts = []
    for start in range(0, case.streams, CHUNK):
        # The same seeds for all cases with as many streams: they differ only by the truth.
        generator = np.random.default_rng([SEED, start])
        parts.append(_first_alarms(case, min(CHUNK, case.streams - start), generator))
    return {name: np.concatenate([part[name] for part in parts]) for name in METHODS}


def _first_alarms(
    case: Case, streams: int, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    p, drifted = CONFIDENCES[case.confidence], case.truth()
    edges = bin_edges(BINS)
    index, offset = bin_index(p, edges), BINS * np.arange(streams)[:, None]
    wealth = np.broadcast_to(initial_log_wealth(BINS), (streams, *initial_log_wealth(BINS).shape))
    log_e, z = (np.empty((streams, case.windows)) for _ in range(2))
    for t in range(case.windows):
        drawn = generator.integers(len(p), size=(streams, EXAMPLES))
        truth = drifted if t >= case.change else p
        correct = generator.random(drawn.shape) < truth[drawn]
        cell = (index[drawn] + offset).ravel()
        count, confidence, hits = (
            np.bincount(cell, values, BINS * streams).reshape(streams, BINS).astype(np.float64)
            for values in (None, p[drawn].ravel(), correct.ravel())
        )
        sums = BinSums(count, confidence, hits, tuple(edges))
        wealth = next_log_wealth(wealth, sums, windows=t)
        log_e[:, t] = total_log_wealth(wealth, windows=t + 1)
        z[:, t] = standardised_residual(sums)
    path = cusum_path(z, reference=REFERENCE)
    found = {}
    for (name, threshold), series in zip(
        METHODS.items(), (log_e, np.abs(z), np.abs(z), path, path), strict=True
    ):
        above = series >= threshold
        found[name] = np.where(above.any(1), above.argmax(1), case.windows)
    return found


CALIBRATED = [
    *(Case(name) for name in CONFIDENCES),
    Case(CONFIDENT, streams=LONG_STREAMS, windows=LONG_WINDOWS),
]
DRIFTS = [
    *(("temperature", CONFIDENT, size) for size in (1.25, 1.5, 2.0)),
    *(("shift", CONFIDENT, size) for size in (-0.25, -0.5, -1.0, 0.5)),
    *(("one bin", CONFIDENT, size) for size in (-0.1, -0.2, -0.4)),
    *(("temperature", BOTH, size) for size in (1.25, 1.5, 2.0)),
]
DRIFTED = [Case(name, kind, size, DELAY_STREAMS, WINDOWS, CHANGE) for kind, name, size in DRIFTS]


def false_alarm_table(results: Sequence[dict[str, np.ndarray]]) -> str:
    """Fraction of calibrated streams that ever raised an alarm, one row for each case."""
    rows = []
    for case, found in zip(CALIBRATED, results, strict=True):
        rates = [f"{100 * (found[name] < case.windows).mean():.1f} %" for name in METHODS]
        rows.append([case.confidence, f"{case.windows:,}", f"{case.streams:,}", *rates])
    return table(["probabilities", "windows", "streams", *METHODS], rows)


def describe(case: Case) -> str:
    """The change in words."""
    if case.kind == "temperature":
        return f"logits / {case.size:g}"
    if case.kind == "shift":
        return f"logits {case.size:+g}"
    return f"one bin {case.size:+g}"


def delay_table(results: Sequence[dict[str, np.ndarray]]) -> str:
    """Median and mean delay and fraction detected, among streams without an earlier alarm."""
    rows = []
    for case, found in zip(DRIFTED, results, strict=True):
        cells = []
        for name in METHODS:
            alarms = found[name][found[name] >= case.change]
            delay, detected = alarms - case.change + 1, alarms < case.windows
            if not detected.any():
                cells.append("never")
                continue
            middle = float(np.median(np.where(detected, delay, np.inf)))
            median = f"{middle:g}" if math.isfinite(middle) else f"> {case.windows - case.change}"
            cells.append(f"{median} / {delay[detected].mean():.1f} / {100 * detected.mean():.0f} %")
        rows.append([case.confidence.split(":")[0], describe(case), *cells])
    return table(["probabilities", "true logits or accuracy", *METHODS], rows)


def early_alarms(results: Sequence[dict[str, np.ndarray]]) -> str:
    """Largest fraction of streams that alarmed before the change, by method."""
    worst = {
        name: max(
            (found[name] < case.change).mean() for case, found in zip(DRIFTED, results, strict=True)
        )
        for name in METHODS
    }
    return ", ".join(f"{name} {100 * rate:.1f} %" for name, rate in worst.items())


def section(results: Sequence[dict[str, np.ndarray]], *, seconds: float) -> str:
    """Both tables and how they were made, between the markers."""
    calibrated, drifted = results[: len(CALIBRATED)], results[len(CALIBRATED) :]
    error = math.sqrt(LEVEL * (1 - LEVEL) / STREAMS)
    thresholds = "; ".join(
        f"{name}: {f'e = {math.exp(value):.0f}' if name == 'e-process' else f'{value:.2f}'}"
        for name, value in METHODS.items()
    )
    return f"""{BEGIN}
`python -m benchmarks.drift_detection` wrote these tables in {seconds:.0f} s. Seed {SEED};
{EXAMPLES} examples in each window; {BINS} bins of equal width. {machine()}.
{versions()}.

Thresholds: {thresholds}.
CUSUM has k = {REFERENCE:g}. ARL is the average run length: the mean number of calibrated windows
until a false alarm. ARL {MATCHED:.0f} is meant to give 5 % false alarms in {WINDOWS} windows.

### False alarms

Fraction of calibrated streams that ever raised an alarm. The level is {100 * LEVEL:g} %;
its standard error over {STREAMS:,} streams is {100 * error:.1f} points.

{false_alarm_table(calibrated)}

### Detection delay

{DELAY_STREAMS:,} streams of {WINDOWS} windows, which change after window {CHANGE}.
Each entry is the median delay in windows, the mean delay of the detected streams, and the fraction
detected. A delay of 1 means the first window after the change. Streams with an alarm before the
change do not count. "One bin" changes the accuracy in the bin (0.8, 0.867].

{delay_table(drifted)}

Largest fraction of streams with an alarm before the change: {early_alarms(drifted)}.
{END}"""


def main() -> None:
    """Simulate, print the tables and put them into the page."""
    start = time.perf_counter()
    cases = [*CALIBRATED, *DRIFTED]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(first_alarms, cases))
    text = section(results, seconds=time.perf_counter() - start)
    print(text)
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        raise ValueError(f"{PAGE} must have the markers {BEGIN} and {END}")
    PAGE.write_text(f"{page.partition(BEGIN)[0]}{text}{page.partition(END)[2]}")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
