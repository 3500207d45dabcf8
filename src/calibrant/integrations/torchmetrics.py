"""Calibration errors as torchmetrics metrics: constant memory, summed over processes.

Every class has a required `kind`: "logits" if `update` gets unnormalised scores, "probs" if it gets
probabilities. It is never guessed from the values.

>>> from calibrant.integrations.torchmetrics import ECE
>>> metric = ECE(kind="logits")
>>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
>>> round(float(metric.compute()), 4)
0.4251
"""

import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.extras import need
from calibrant.metrics.bins import Bins, BinSums, bin_edges, check_count
from calibrant.metrics.classwise import class_errors, class_sums
from calibrant.predictions import Predictions

need("torchmetrics", extra="torchmetrics", what="calibrant.integrations.torchmetrics")

from torchmetrics import Metric  # noqa: E402, the line above explains a missing package

Kind = Literal["logits", "probs"]
PARTS = ("count", "confidence", "correct")


class _SumsMetric(Metric):
    """A metric whose state is sums per bin: its size is constant."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    count: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(self, empty: BinSums, kind: Kind, **options: Any) -> None:
        if kind not in ("logits", "probs"):
            raise ValueError(f"kind must be 'logits' or 'probs', got {kind!r}")
        super().__init__(**options)
        self.kind = kind
        self.edges = empty.edges
        for part in PARTS:
            start = torch.from_numpy(getattr(empty, part).copy())
            self.add_state(part, start, dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch of (n, k) scores, logits or probabilities as `kind` says, and labels."""
        make = Predictions if self.kind == "logits" else Predictions.from_probs
        batch = self._batch_sums(make(scores, labels))
        for part in PARTS:
            state: Tensor = getattr(self, part)
            state += torch.from_numpy(getattr(batch, part)).to(state.device)

    def sums(self) -> BinSums:
        """Return the current sums, for example for a reliability diagram."""
        count, confidence, correct = (getattr(self, part).cpu().numpy() for part in PARTS)
        return BinSums(count, confidence, correct, self.edges)

    def compute(self) -> Tensor:
        """Return the error of all batches, over all processes."""
        if not self.count.any():
            raise ValueError("nothing was added yet: call update(scores, labels) first")
        return torch.tensor(self._error(self.sums()), dtype=torch.float64)

    @abstractmethod
    def _batch_sums(self, predictions: Predictions) -> BinSums: ...

    @abstractmethod
    def _error(self, sums: BinSums) -> float: ...


class ECE(_SumsMetric):
    """Expected calibration error of the top label; `metrics.ece` of all batches together.

    Args:
        kind: whether `update` gets "logits" or "probs".
        bins: number of bins of equal width, or their edges.
        options: options of `torchmetrics.Metric`.
    """

    norm = 1.0

    def __init__(self, *, kind: Kind, bins: Bins = 15, **options: Any) -> None:
        super().__init__(BinSums.zero(bins), kind, **options)

    def _batch_sums(self, predictions: Predictions) -> BinSums:
        return BinSums.of(predictions, self.edges or 15)

    def _error(self, sums: BinSums) -> float:
        return float(sums.error(self.norm))


class RMSCE(ECE):
    """Root mean square calibration error; arguments as `ECE`."""

    norm = 2.0


class MCE(ECE):
    """Maximum calibration error; arguments as `ECE`."""

    norm = math.inf


class AdaptiveECE(_SumsMetric):
    """ECE over equal-mass bins, formed from the fine grid of `BinSums.on_grid`.

    Args:
        kind: whether `update` gets "logits" or "probs".
        bins: number of bins.
        options: options of `torchmetrics.Metric`.
    """

    def __init__(self, *, kind: Kind, bins: int = 15, **options: Any) -> None:
        self.bins = check_count(bins)
        super().__init__(BinSums.grid_zero(), kind, **options)

    def _batch_sums(self, predictions: Predictions) -> BinSums:
        return BinSums.on_grid(predictions.confidence.numpy(), predictions.correct.numpy())

    def _error(self, sums: BinSums) -> float:
        return sums.equal_mass(self.bins).ece


class ClasswiseECE(_SumsMetric):
    """Mean of the ECE of each class; classes that never occur are excluded.

    Args:
        kind: whether `update` gets "logits" or "probs".
        classes: number of classes k.
        bins: number of bins of equal width, or their edges.
        options: options of `torchmetrics.Metric`.
    """

    def __init__(self, *, kind: Kind, classes: int, bins: Bins = 15, **options: Any) -> None:
        edges = bin_edges(bins)
        empty = torch.zeros(classes, len(edges) - 1, dtype=torch.float64).numpy()
        super().__init__(BinSums(empty, empty, empty, tuple(edges)), kind, **options)

    def _batch_sums(self, predictions: Predictions) -> BinSums:
        if predictions.classes != len(self.count):
            raise ValueError(f"expected {len(self.count)} classes, got {predictions.classes}")
        return class_sums(predictions, bins=self.edges or 15)

    def _error(self, sums: BinSums) -> float:
        return float(class_errors(sums)[sums.correct.sum(1) > 0].mean())
