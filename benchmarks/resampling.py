"""A bootstrap interval against evaluating the metric anew on every resample."""

import numpy as np
import torch

from benchmarks.inputs import SEED, logits_like_a_network
from benchmarks.measure import Section, best_of, seconds
from calibrant import Predictions
from calibrant.metrics import ece, interval

SIZE = (50_000, 10)
RESAMPLES = 1_000
MEASURED = 50
ABOUT = f"""The other resamples examples and evaluates `ece(Predictions(...))` each time. It runs
{MEASURED} of {RESAMPLES:,} resamples, and its time is extrapolated."""


def run() -> Section:
    """Measure both; the other in three lots, of which the best counts."""
    section = Section("Bootstrap interval", ABOUT)
    logits, labels = logits_like_a_network(*SIZE)
    predictions = Predictions(logits, labels)
    generator = np.random.default_rng(SEED)

    def naive() -> None:
        for _ in range(MEASURED):
            drawn = torch.from_numpy(generator.integers(0, len(labels), len(labels)))
            ece(Predictions(logits[drawn], labels[drawn]))

    ours = best_of(lambda: interval(ece, predictions, resamples=RESAMPLES), repeats=3)
    rival = min(seconds(naive) for _ in range(3)) * RESAMPLES / MEASURED
    what = f"{RESAMPLES:,} resamples of ECE, {SIZE[0]:,} x {SIZE[1]}"
    section.faster(what, ours, rival, at_least=10)
    return section
