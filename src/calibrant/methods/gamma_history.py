"""Statistics of gamma in an epoch, and warning signs that learning it failed."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

# Histogram bins over the range of gamma: quantiles are exact to one bin width.
CELLS = 2000
BINS = 15
QUANTILES = {"gamma_q05": 0.05, "gamma_q50": 0.5, "gamma_q95": 0.95}
STATE = ("cells", "sums", "objectives", "accuracies", "warned")
# Number of epochs that a warning sign is based on.
WINDOW = 6
SIGNS = {
    "gamma_collapsed": "gamma is nearly the same for all examples, or at an end of its range: a "
    "focal loss with that gamma does as well; lower meta_lr, or raise tau if gamma is at its top",
    "meta_oscillates": "the held-out objective oscillates from epoch to epoch: "
    "raise meta_batch or bandwidth, or lower meta_lr",
    "accuracy_fell": "validation accuracy stays clearly below its best: lower tau, "
    "or choose the objective sece+ce",
}


class GammaHistory:
    """Running sums over an epoch's training examples, with gamma up to `top`; earlier results."""

    def __init__(self, top: float) -> None:
        self.top = top
        self.objectives: list[float] = []
        self.accuracies: list[float] = []
        self.warned: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.cells = torch.zeros(CELLS, dtype=torch.int64)
        # Counts, sums and sums of squares by confidence bin: correct examples, then wrong ones.
        self.sums = torch.zeros(3, 2 * BINS, dtype=torch.float64)

    def add(self, gamma: Tensor, confidence: Tensor, correct: Tensor) -> None:
        """Add the examples of a step."""
        gamma = gamma.detach().cpu().double()
        cell = (gamma * (CELLS / self.top)).long().clamp(0, CELLS - 1)
        self.cells += torch.bincount(cell, minlength=CELLS)
        index = (confidence.detach().cpu().double() * BINS).ceil().long().clamp(1, BINS) - 1
        index = index + BINS * (correct.cpu() == 0)
        powers = torch.stack([torch.ones_like(gamma), gamma, gamma**2])
        self.sums.index_add_(1, index, powers)

    def record(self, objective: float, accuracy: float, examples: int) -> dict[str, Any]:
        """Values to log; starts the next epoch.

        `objective` is the mean on held-out data, `accuracy` that of so many validation `examples`.
        """
        count, total, squares = (float(each) for each in self.sums.sum(1))
        mean = total / max(count, 1)
        spread = max(squares / max(count, 1) - mean**2, 0) ** 0.5
        self.objectives.append(objective)
        self.accuracies.append(accuracy)
        signs = {
            "gamma_collapsed": len(self.objectives) >= WINDOW
            and count > 0
            and (spread <= 1e-3 * mean or not 0.01 < mean / self.top < 0.99),
            "meta_oscillates": _oscillates(self.objectives[-WINDOW:]),
            "accuracy_fell": _fell(self.accuracies, examples),
        }
        for name, found in signs.items():
            if found and name not in self.warned:
                self.warned.append(name)
                warnings.warn(f"gamma {mean:.3g} on average: {SIGNS[name]}", stacklevel=3)
        counts = self.sums[0].reshape(2, BINS)
        means = self.sums[1].reshape(2, BINS) / counts.clamp(min=1)
        record = {
            "gamma_mean": mean,
            "gamma_std": spread,
            **{name: self._quantile(level) for name, level in QUANTILES.items()},
            **{name: float(found) for name, found in signs.items()},
            "gamma_right": means[0].tolist(),
            "gamma_wrong": means[1].tolist(),
            "count_right": counts[0].tolist(),
            "count_wrong": counts[1].tolist(),
        }
        self._clear()
        return record

    def _quantile(self, level: float) -> float:
        """Quantile of gamma, interpolated within a histogram bin."""
        below = self.cells.cumsum(0).double()
        if not below[-1]:
            return 0.0
        rank = level * below[-1]
        cell = int(torch.searchsorted(below, rank).clamp(max=CELLS - 1))
        within = (rank - (below[cell] - self.cells[cell])) / self.cells[cell].clamp(min=1)
        return float((cell + within) * self.top / CELLS)

    def state_dict(self) -> dict[str, Any]:
        """Running sums, and results of earlier epochs."""
        return {name: deepcopy(getattr(self, name)) for name in STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load state."""
        for name in STATE:
            value = deepcopy(state[name])
            setattr(self, name, value.cpu() if isinstance(value, Tensor) else value)


def _oscillates(values: list[float]) -> bool:
    """Whether changes alternate in sign, and each is at least a fifth of the mean."""
    if len(values) < WINDOW:
        return False
    changes = torch.tensor(values, dtype=torch.float64).diff()
    alternates = bool((changes[1:] * changes[:-1] < 0).all())
    return alternates and bool(changes.abs().min() > 0.2 * sum(values) / len(values))


def _fell(values: list[float], examples: int) -> bool:
    """Whether the recent best is below the earlier best by more than three standard errors."""
    if len(values) < 2 * WINDOW:
        return False
    best, recent = max(values[:-WINDOW]), max(values[-WINDOW:])
    noise = (2 * best * (1 - best) / max(examples, 1)) ** 0.5
    return bool(best - recent > max(0.02, 3 * noise))
