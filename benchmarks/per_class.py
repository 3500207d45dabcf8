"""Class-wise ECE against a loop over classes in numpy."""

import numpy as np
import torch

from benchmarks.inputs import logits_like_a_network
from benchmarks.measure import Section, alternate
from calibrant import Predictions
from calibrant.metrics import classwise_ece

SIZE = (200_000, 100)
ABOUT = """The other is the loop one would write: for each class one `digitize`, three `bincount`
and the sum of the gaps. In the first row, calibrant starts from existing Predictions of logits, so
its time includes the softmax; the loop starts from probabilities. In the second, both start from
logits; making the Predictions serves all other metrics, too. In the third, calibrant also checks
the probabilities."""


def loop(probs: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Class-wise ECE, one class at a time."""
    inner = np.arange(1, bins) / bins
    errors = []
    for c in range(probs.shape[1]):
        index = np.digitize(probs[:, c], inner, right=True)
        count = np.bincount(index, minlength=bins)
        forecast = np.bincount(index, probs[:, c], bins)
        hits = np.bincount(index, labels == c, bins)
        filled = count > 0
        gap = np.abs(forecast[filled] - hits[filled]) / count[filled]
        errors.append((count[filled] / len(labels) * gap).sum())
    return float(np.mean(errors))


def run() -> Section:
    """Measure the metric, then the way from logits and from probabilities."""
    section = Section("Class-wise ECE", ABOUT)
    logits, labels = logits_like_a_network(*SIZE)
    probs, truth = torch.softmax(logits, 1).numpy(), labels.numpy()
    gap = abs(classwise_ece(Predictions(logits, labels)) - loop(probs, truth))
    size = f"{SIZE[0]:,} x {SIZE[1]}"
    predictions = Predictions(logits, labels)
    section.faster(
        f"the metric, {size}",
        *alternate(lambda: classwise_ece(predictions), lambda: loop(probs, truth), repeats=7),
        at_least=10,
    )
    section.faster(
        f"from logits, {size}",
        *alternate(
            lambda: classwise_ece(Predictions(logits, labels)),
            lambda: loop(torch.softmax(logits, 1).numpy(), truth),
        ),
        at_least=None,
    )
    section.faster(
        f"from probabilities, {size}",
        *alternate(
            lambda: classwise_ece(Predictions.from_probs(probs, truth)),
            lambda: loop(probs, truth),
            repeats=3,
        ),
        at_least=None,
    )
    section.below("difference of the two values", gap, "", goal=1e-6)
    return section
