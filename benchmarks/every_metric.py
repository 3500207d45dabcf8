"""What each metric costs, with other libraries where they have the same one."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.metrics import brier_score_loss, log_loss

from benchmarks import rivals
from benchmarks.inputs import logits_like_a_network
from benchmarks.measure import Line, Section, alternate, best_of
from calibrant import Predictions
from calibrant.metrics import METRICS

SIZE = (50_000, 100)
ABOUT = """For reference, without goals. Our metrics start from existing Predictions; the first row
is the time to make them. Rivals start from float32 probabilities, relplot from float64 confidences.
Metrics that use what the Predictions already hold take almost no time."""


def run() -> Section:
    """Time all of `METRICS`."""
    section = Section(f"Every metric, {SIZE[0]:,} x {SIZE[1]}", ABOUT)
    logits, labels = logits_like_a_network(*SIZE)
    predictions = Predictions(logits, labels)
    section.note("`Predictions(logits, labels)`", best_of(lambda: Predictions(logits, labels)), "s")
    for name, metric in METRICS.items():
        others = _others(predictions).get(name, {})
        ours = best_of(lambda m=metric: m(predictions), repeats=3)
        if not others:
            section.note(f"`{name}`", ours, "s")
        for library, call in others.items():
            ours, rival = alternate(lambda m=metric: m(predictions), _quiet(call), repeats=3)
            ratio = f"{rival / ours:.3g}x"
            section.lines.append(Line(f"`{name}`, {library}", ours, rival, "s", ratio))
    return section


def _others(predictions: Predictions) -> dict[str, dict[str, Callable[[], float]]]:
    """By metric and library: the same metric from probabilities."""
    probs, labels = predictions.probs, predictions.labels
    array, truth = probs.numpy(), labels.numpy()
    confidence, correct = predictions.confidence.numpy(), predictions.correct.numpy()
    classes = np.arange(predictions.classes)

    def torchmetrics(norm: str) -> dict[str, Callable[[], float]]:
        call = rivals.multiclass_calibration_error
        return {
            "torchmetrics": lambda: float(
                call(probs, labels, predictions.classes, n_bins=15, norm=norm)
            )
        }

    return {
        "ece": {
            **torchmetrics("l1"),
            "netcal": lambda: rivals.ECE(15).measure(array, truth),
            "uncertainty-calibration": lambda: rivals.calibration.get_ece(array, truth),
        },
        "mce": torchmetrics("max"),
        "rmsce": torchmetrics("l2"),
        "adaptive_ece": {
            "uncertainty-calibration": lambda: rivals.calibration.get_ece_em(array, truth)
        },
        "smece": {"relplot": lambda: rivals.relplot.smECE(confidence, correct)},
        "nll": {
            "scikit-learn": lambda: log_loss(truth, array, labels=classes),
            "torch": lambda: float(torch.nn.functional.nll_loss(probs.log(), labels)),
        },
        "brier": {
            "scikit-learn": lambda: brier_score_loss(
                truth, array, labels=classes, scale_by_half=False
            )
        },
    }


def _quiet(call: Callable[[], float]) -> Callable[[], float]:
    """Keep the warnings of other libraries out of the table."""

    def quiet() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()

    return quiet
