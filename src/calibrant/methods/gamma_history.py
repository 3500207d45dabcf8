"""What became of gamma in an epoch, and the signs that learning it went wrong."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Gamma is counted in this many cells of its range: quantiles are exact to one cell.
CELLS = 2000
BINS = 15
QUANTILES = {"gamma_q05": 0.05, "gamma_q50": 0.5, "gamma_q95": 0.95}
# Epochs that a sign of failure looks back on; before them there is none.
WINDOW = 6
SIGNS = {
    "gamma_collapsed": "gamma is nearly the same for all examples, or at an end of its range: a "
    "focal loss with that gamma does as well; lower meta_lr, or raise tau if gamma is at its top",
    "meta_oscillates": "the objective on held-out data goes up and down from epoch to epoch: "
    "raise meta_batch or bandwidth, or lower meta_lr",
    "accuracy_fell": "validation accuracy stays clearly below its best: lower tau, "
    "or choose the objective sece+ce",
}


class GammaHistory:
    """Sums over the training examples of an epoch, and what earlier epochs came to.

    Args:
        top: the largest gamma there can be.
    """

    def __init__(self, top: float) -> None:
        self.top = top
        self.objectives: list[float] = []
        self.accuracies: list[float] = []
        self.warned: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.cells = torch.zeros(CELLS, dtype=torch.int64)
        # By right and wrong, each in bins of confidence: examples, sums and sums of squares.
        self.sums = torch.zeros(3, 2 * BINS, dtype=torch.float64)

    def add(self, gamma: Tensor, confidence: Tensor, correct: Tensor) -> None:
        """Count the examples of a step."""
        gamma = gamma.detach().cpu().double()
        cell = (gamma * (CELLS / self.top)).long().clamp(0, CELLS - 1)
        self.cells += torch.bincount(cell, minlength=CELLS)
        place = (confidence.detach().cpu().double() * BINS).ceil().long().clamp(1, BINS) - 1
        place = place + BINS * (correct.cpu() == 0)
        powers = torch.stack([torch.ones_like(gamma), gamma, gamma**2])
        self.sums.index_add_(1, place, powers)

    def row(self, objective: float, accuracy: float, examples: int) -> dict[str, Any]:
        """What is worth logging; starts the next epoch.

        Args:
            objective: mean over the epoch, on held-out data.
            accuracy: on validation data.
            examples: in validation data.
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
        for name, seen in signs.items():
            if seen and name not in self.warned:
                self.warned.append(name)
                warnings.warn(f"gamma {mean:.3g} on average: {SIGNS[name]}", stacklevel=3)
        counts = self.sums[0].reshape(2, BINS)
        means = self.sums[1].reshape(2, BINS) / counts.clamp(min=1)
        found = {
            "gamma_mean": mean,
            "gamma_std": spread,
            **{name: self._quantile(part) for name, part in QUANTILES.items()},
            **{name: float(seen) for name, seen in signs.items()},
            "gamma_right": means[0].tolist(),
            "gamma_wrong": means[1].tolist(),
            "count_right": counts[0].tolist(),
            "count_wrong": counts[1].tolist(),
        }
        self._clear()
        return found

    def _quantile(self, part: float) -> float:
        """The gamma below which this part of the examples lies."""
        below = self.cells.cumsum(0).double()
        if not below[-1]:
            return 0.0
        wanted = part * below[-1]
        cell = int(torch.searchsorted(below, wanted).clamp(max=CELLS - 1))
        within = (wanted - (below[cell] - self.cells[cell])) / self.cells[cell].clamp(min=1)
        return float((cell + within) * self.top / CELLS)

    def state_dict(self) -> dict[str, Any]:
        """Sums, and what earlier epochs came to."""
        return {
            "cells": self.cells.clone(),
            "sums": self.sums.clone(),
            "objectives": list(self.objectives),
            "accuracies": list(self.accuracies),
            "warned": list(self.warned),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.cells, self.sums = state["cells"].cpu().clone(), state["sums"].cpu().clone()
        self.objectives, self.accuracies = list(state["objectives"]), list(state["accuracies"])
        self.warned = list(state["warned"])


def _oscillates(values: list[float]) -> bool:
    """Whether every change has the other sign than the last, and is a fifth of the mean or more."""
    if len(values) < WINDOW:
        return False
    changes = torch.tensor(values, dtype=torch.float64).diff()
    turns = bool((changes[1:] * changes[:-1] < 0).all())
    return turns and bool(changes.abs().min() > 0.2 * sum(values) / len(values))


def _fell(values: list[float], examples: int) -> bool:
    """Whether none of the last epochs comes near the best of all before, by three deviations."""
    if len(values) < 2 * WINDOW:
        return False
    best, lately = max(values[:-WINDOW]), max(values[-WINDOW:])
    noise = (2 * best * (1 - best) / max(examples, 1)) ** 0.5
    return bool(best - lately > max(0.02, 3 * noise))
