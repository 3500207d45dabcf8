"""Metrics as the `compute_metrics` of a Trainer."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from calibrant.integrations.transformers.batches import IGNORED, check_labels, labelled_rows
from calibrant.metrics.registry import METRICS
from calibrant.predictions import Predictions
from calibrant.setting_errors import did_you_mean
from calibrant.training.progress import measure_all
from calibrant.training.refinement import REFINED

USUAL = ("accuracy", "nll", "brier", "ece", "debiased_ece")
Measure = Callable[[Any], dict[str, float]]


def compute_metrics(names: Sequence[str] = USUAL, *, ignore_index: int = IGNORED) -> Measure:
    """Make the `compute_metrics` of a Trainer, which logs each metric as `eval_<name>`.

    `metric_for_best_model="nll"` then keeps the checkpoint with the lowest NLL. If you calibrate
    afterwards, `"refined_nll"` is the better choice: the NLL after a cross-fitted temperature.

    Args:
        names: of `calibrant.metrics.METRICS`, or "refined_nll" and "refined_brier".
        ignore_index: label of positions without one.
    """
    for name in names:
        if name not in (known := (*METRICS, *REFINED)):
            raise ValueError(f"no metric {name!r}; {did_you_mean(name, known)}")

    def measure(evaluated: Any) -> dict[str, float]:
        predictions = predictions_of(evaluated, ignore_index=ignore_index)
        return measure_all(predictions, names)

    return measure


def predictions_of(evaluated: Any, *, ignore_index: int = IGNORED) -> Predictions:
    """Predictions of an `EvalPrediction`; the logits are the first of several outputs."""
    first, labels = evaluated.predictions, evaluated.label_ids
    logits = torch.as_tensor(first[0] if isinstance(first, tuple) else first)
    # Several arrays of labels are refused by the check.
    labels = torch.as_tensor(labels) if isinstance(labels, np.ndarray) else labels
    check_labels(logits, labels)
    return Predictions(*labelled_rows(logits, labels, ignore_index=ignore_index))
