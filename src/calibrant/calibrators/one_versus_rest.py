"""One-versus-rest calibrators: one function of the log-odds for each class."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.focal_map import log_misses
from calibrant.calibrators.masks import Mask, infinite_odds, log_softmax, mask_of
from calibrant.calibrators.shared_steps import once
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Logits

# Scores (n times k) mapped at once: bounds the memory of intermediate results.
BLOCK = 1 << 22
# Larger log-odds are clipped, so that their sums stay within float32.
FARTHEST = 1e30

# n examples, m functions: one for two classes, else one for each class.
Odds = Float[Tensor, "n m"]
FittingOdds = Float64[np.ndarray, "m n"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OneVersusRest(Calibrator):
    r"""Map the log-odds x of each class against all others by a function of its own.

    $$q_j \propto \sigma(f_j(x_j)), \qquad x_j = \log \frac{p_j}{1 - p_j}$$

    Two classes need one function, of the log-odds of class 1, and no normalisation. The k binary
    probabilities of more classes do not sum to 1. Dividing by their sum is a heuristic: functions
    are fitted separately, so the joint NLL may get worse, and small sums amplify noise.
    Examples in which a class is masked, or the only one allowed, are not used to fit its function.
    """

    keeps_argmax: ClassVar[bool] = False

    @abstractmethod
    def map_odds(self, odds: Odds) -> Odds:
        """Return the calibrated log-odds of each function, before normalisation."""

    def log_probs(self, logits: Logits) -> Logits:
        """Map the log-odds, and normalise."""
        return map_blocks(self._map_block, logits)

    def _map_block(self, logits: Logits) -> Logits:
        masked, odds = mask_of(logits), odds_of(logits)
        if masked is None:
            return _normalise(self.map_odds(odds))
        finite = odds.masked_fill(_unused(masked), 0.0)
        return log_softmax(_normalise(self.map_odds(finite)), masked)


def map_blocks(function: Callable[[Logits], Logits], logits: Logits) -> Logits:
    """Apply a function to blocks of rows, so that its intermediate results stay small."""
    blocks = torch.split(logits, max(1, BLOCK // logits.shape[1]))
    return torch.cat([function(block) for block in blocks])


def functions(classes: int) -> int:
    """Number of functions of a one-versus-rest calibrator."""
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    return 1 if classes == 2 else classes


def check_probs(values: Tensor) -> None:
    """Refuse values of a function that are not probabilities, or have no finite log-odds."""
    if not bool(((values > 0) & (values < 1)).all()):
        raise ValueError("values must lie strictly between 0 and 1")


def log_odds(logits: Logits) -> Logits:
    """Log-odds of every class against all others, accurate also where a probability rounds to 1."""
    log_probs = torch.log_softmax(logits, 1)
    return log_probs - log_misses(log_probs)


class BinaryProblems(NamedTuple):
    """Data of the m functions: log-odds (m, n), weights and labels of the examples.

    Weights are (n,); with masked classes (m, n), with 0 for examples that are not used.
    """

    odds: FittingOdds
    weights: np.ndarray
    labels: Index

    def of(self, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Whether each label is the class of each of these functions, and the weights."""
        own = np.array([1]) if len(self.odds) == 1 else np.arange(len(self.odds))[part]
        weights = self.weights if self.weights.ndim == 1 else self.weights[part]
        return np.asarray(self.labels == own[:, None]), weights


@once
def binary_problems(predictions: Predictions, logits: Logits) -> BinaryProblems:
    """Compute the log-odds of each function in float64."""
    odds, weights = np.empty((functions(logits.shape[1]), len(logits))), predictions.example_weights
    if mask_of(logits) is not None:
        weights = np.tile(weights, (len(odds), 1))

    def fill(part: slice) -> None:
        found, masked = odds_of(logits[part].double()), mask_of(logits[part])
        if masked is not None:
            unused = _unused(masked)
            found = found.masked_fill(unused, 0.0)
            weights[:, part][unused.numpy().T] = 0
        odds[:, part] = found.numpy().T

    for _ in map_chunks(fill, logits):
        pass
    return BinaryProblems(odds, weights, predictions.labels.numpy())


def _unused(masked: Mask) -> Bool[Tensor, "n m"]:
    """Where the log-odds of a function are infinite."""
    return infinite_odds(masked)[:, 1:] if masked.shape[1] == 2 else infinite_odds(masked)


def odds_of(logits: Logits) -> Odds:
    """Log-odds of each function: of class 1 of two, else of every class against all others."""
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else log_odds(logits)


def _normalise(odds: Odds) -> Logits:
    odds = odds.clamp(-FARTHEST, FARTHEST)
    if odds.shape[1] == 1:
        return torch.cat([logsigmoid(-odds), logsigmoid(odds)], 1)
    return torch.log_softmax(logsigmoid(odds), 1)
