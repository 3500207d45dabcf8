"""Kernel errors: time and exactness of SECE, and smooth ECE against relplot."""

import time

import numpy as np

from benchmarks.inputs import SEED, top_label
from benchmarks.measure import Section, alternate, best_of
from calibrant import Predictions
from calibrant.metrics import sece, smece

ROWS = 1_000_000
# Prime, so that the values do not fall on the points of the grid.
DISTINCT = 9_973
CONTINUOUS = 20_000
BANDWIDTH = 0.01
SECE_ABOUT = f"""CPU time of all threads, from existing Predictions. The error is the difference to
the double sum over all pairs in float64: for a million examples with {DISTINCT:,} distinct
confidences, where the sum can be grouped, and for {CONTINUOUS:,} examples with distinct
confidences."""
SMECE_ABOUT = """Both start from confidences and correctness of two classes, calibrant from existing
Predictions."""


def predictions_of(confidence: np.ndarray, correct: np.ndarray) -> Predictions:
    """Two-class predictions with these confidences, all at least one half."""
    return Predictions.from_probs(
        np.stack([confidence, 1 - confidence], 1), np.where(correct > 0, 0, 1)
    )


def all_pairs(confidence: np.ndarray, correct: np.ndarray) -> float:
    """SECE as it is defined: every example against every other, grouped by value."""
    values, group = np.unique(confidence, return_inverse=True)
    count, hits = np.bincount(group), np.bincount(group, correct)
    total = 0.0
    for part in np.array_split(np.arange(len(values)), 1 + len(values) // 200):
        kernel = np.exp(-((values[part, None] - values) ** 2) / (2 * BANDWIDTH**2))
        near = (kernel @ hits) / (kernel @ count)
        total += float((count[part] * np.abs(near - values[part])).sum())
    return total / len(confidence)


def run_sece() -> Section:
    """Measure SECE of a million examples, and how far it is from the double sum."""
    section = Section("SECE", SECE_ABOUT)
    confidence, correct = top_label(ROWS)
    predictions = predictions_of(confidence, correct)
    spent = best_of(lambda: sece(predictions, bandwidth=BANDWIDTH), clock=time.process_time)
    section.below(f"CPU time, {ROWS:,} examples", spent, "s", goal=1)
    whole = best_of(
        lambda: sece(predictions_of(confidence, correct)), repeats=3, clock=time.process_time
    )
    section.note("the same, including making the Predictions", whole, "s")

    values = 0.5 + 0.5 * (np.arange(DISTINCT) + 0.5) / DISTINCT
    rows = np.minimum((2 * confidence - 1) * DISTINCT, DISTINCT - 1).astype(int)
    samples = {f"{ROWS:,} examples, {DISTINCT:,} values": (values[rows], correct)}
    kept = np.random.default_rng(SEED).integers(0, ROWS, CONTINUOUS)
    samples[f"{CONTINUOUS:,} examples, all different"] = confidence[kept], correct[kept]
    for name, sample in samples.items():
        found = sece(predictions_of(*sample), bandwidth=BANDWIDTH)
        section.below(f"error, {name}", abs(found - all_pairs(*sample)), "", goal=1e-5)
    return section


def run_smece() -> Section:
    """Measure smooth ECE side by side with relplot."""
    from benchmarks.rivals import relplot

    section = Section("Smooth ECE", SMECE_ABOUT)
    for n in (10_000, 100_000, 1_000_000):
        confidence, correct = top_label(n)
        predictions = predictions_of(confidence, correct)
        ours, rival = alternate(
            lambda p=predictions: smece(p),
            lambda r=confidence, c=correct: relplot.smECE(r, c),
            repeats=3,
        )
        section.faster(f"{n:,} examples", ours, rival, at_least=1)
    return section
