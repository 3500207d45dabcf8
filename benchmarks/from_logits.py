"""Four metrics from large logits against torchmetrics' ECE alone: time and memory."""

import sys

from benchmarks.inputs import logits_like_a_network
from benchmarks.measure import Section, alternate, extra_memory, in_fresh_process
from calibrant import Predictions
from calibrant.metrics import accuracy, brier, ece, nll

SIZE = (50_000, 1_000)
ABOUT = """calibrant computes accuracy, NLL, Brier score and ECE from logits; torchmetrics computes
ECE from the same float32 logits. Memory is the rise of the peak of a fresh process that has made
the input and has run once on 100 rows."""


def four_metrics(logits, labels) -> list[float]:
    """Everything that a first look at a network asks for."""
    predictions = Predictions(logits, labels)
    return [metric(predictions) for metric in (accuracy, nll, brier, ece)]


def torchmetrics_ece(logits, labels) -> float:
    """The ECE of torchmetrics from logits."""
    from benchmarks.rivals import multiclass_calibration_error

    return float(multiclass_calibration_error(logits, labels, logits.shape[1], n_bins=15))


SIDES = {"calibrant": four_metrics, "torchmetrics": torchmetrics_ece}


def run() -> Section:
    """Measure seconds here and memory in fresh processes."""
    section = Section("Four metrics from logits", ABOUT)
    logits, labels = logits_like_a_network(*SIZE)
    ours, rival = alternate(
        lambda: four_metrics(logits, labels), lambda: torchmetrics_ece(logits, labels), repeats=7
    )
    size = f"{SIZE[0]:,} x {SIZE[1]:,}"
    section.faster(f"time, {size}", ours, rival, at_least=3)
    (ours,) = in_fresh_process("benchmarks.from_logits", "calibrant")
    (rival,) = in_fresh_process("benchmarks.from_logits", "torchmetrics")
    section.below(f"extra memory, {size}", ours, "MB", goal=100, rival=rival)
    return section


if __name__ == "__main__":
    side = SIDES[sys.argv[1]]
    given = logits_like_a_network(*SIZE)
    side(*(part[:100] for part in given))
    print(extra_memory(lambda: side(*given)))
