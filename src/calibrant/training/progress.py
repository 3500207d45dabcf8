"""Progress of a training run, what it measures, and how it can fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from calibrant.metrics import METRICS
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.training.refinement import REFINED, refined

# Measured on the validation data after every epoch.
WATCHED = ("accuracy", "nll", "brier", "ece", "overconfidence")


class DivergedError(FloatingPointError):
    """The loss or the gradient is no longer finite; the weights are those before that step.

    Attributes:
        record: step, epoch, loss, gradient_norm, lr, and the examples of the step.
    """

    def __init__(self, record: Mapping[str, Any], *, before: bool = False) -> None:
        super().__init__(
            "loss {loss}, gradient norm {gradient_norm} at step {step} (epoch {epoch}, learning "
            "rate {lr:g}): lower the rate, or clip the gradient".format(**record)
            + ("; it diverged before" if before else "")
        )
        self.record = dict(record)


def measure_all(
    predictions: Predictions, names: Sequence[str], *, refine_by: str = "temperature"
) -> dict[str, float]:
    """Metrics by name, without their warnings: in training they would come in every epoch.

    Args:
        predictions: of validation or test data.
        names: names in `METRICS` and `REFINED`.
        refine_by: calibrator of the latter.
    """
    with without_warnings():
        return {
            name: refined(predictions, name, refine_by)
            if name in REFINED
            else METRICS[name](predictions)
            for name in names
        }


def validation_metrics(val: Predictions) -> dict[str, float]:
    """What is measured after every epoch; the mean entropy is in nats."""

    def of_part(_: slice, scores: np.ndarray, totals: np.ndarray) -> float:
        probs = scores / totals[:, None]
        return float(special.entr(probs.astype(np.float64)).sum())

    found = measure_all(val, WATCHED)
    found["confidence"] = float(val.confidence.mean())
    found["entropy"] = sum(val.map_scaled(of_part)) / len(val)
    return {f"val_{name}": value for name, value in found.items()}


@dataclass
class Progress:
    """Finished epochs, steps of the one under way, and what was measured."""

    epoch: int = 0
    at: int = 0
    loss: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stopped: bool = False
    records: list[dict[str, float]] = field(default_factory=list)

    def end_epoch(self, metrics: dict[str, Any]) -> None:
        """Begin the next epoch."""
        self.history.append(metrics)
        self.epoch, self.at, self.loss = self.epoch + 1, 0, 0.0
