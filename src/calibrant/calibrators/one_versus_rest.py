"""One function for each class, of its log-odds against all others."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.masks import Mask, left_out, log_softmax, mask_of
from calibrant.example_stats import map_chunks
from calibrant.shapes import Logits, Values

# Numbers (rows times classes) mapped at once: bounds the memory of what lies between.
BLOCK = 1 << 22
# Log-odds beyond this are as good as infinite, and sums of them stay within float32.
FARTHEST = 1e30

# n examples, m functions: one if there are two classes, else one for each class.
Odds = Float[Tensor, "n m"]
FittingOdds = Float64[np.ndarray, "m n"]


@dataclass(frozen=True, eq=False, kw_only=True)
class OneVersusRest(Calibrator):
    r"""Every class against all others: its log-odds x are moved by a function of its own.

    $$q_j \propto \sigma(f_j(x_j)), \qquad x_j = \log \frac{p_j}{1 - p_j}$$

    Two classes need one function, of the log-odds of class 1, and nothing is left to normalise.
    With more the k binary answers do not sum to 1. Dividing by their sum is a heuristic: each
    function is fitted as if it stood alone, so the joint log score may get worse, and where
    all k answers are small the division makes much of little. Examples for which a class is masked,
    or is the only one left, are left out of its function's fit.
    """

    keeps_argmax: ClassVar[bool] = False

    @abstractmethod
    def moved(self, odds: Odds) -> Odds:
        """New log-odds of each function's class, before they are made to sum to 1."""

    def log_probs(self, logits: Logits) -> Logits:
        """Move the log-odds, and normalise."""
        parts = torch.split(logits, max(1, BLOCK // self.classes))
        return torch.cat([self._of_part(part) for part in parts])

    def _of_part(self, logits: Logits) -> Logits:
        masked, odds = mask_of(logits), _odds(logits)
        if masked is None:
            return _combined(self.moved(odds))
        known = odds.masked_fill(_left_out(masked), 0.0)
        return log_softmax(_combined(self.moved(known)), masked)


def functions(classes: int) -> int:
    """How many functions a one-versus-rest calibrator of this many classes has."""
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    return 1 if classes == 2 else classes


def log_odds(logits: Logits) -> Logits:
    """Log-odds of every class against all others, exact also where a probability rounds to 1."""
    log_probs = torch.log_softmax(logits, 1)
    top = torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.argmax(1, keepdim=True), 1)
    # Only the top class can be above 1/2; what it misses is the sum of the others.
    misses = log_probs.masked_fill(top, -FARTHEST)
    log_miss = torch.where(top, misses.logsumexp(1, keepdim=True), torch.log1p(-misses.exp()))
    return log_probs - log_miss


def fitting_odds(logits: Logits, weights: Values) -> tuple[FittingOdds, np.ndarray]:
    """Log-odds in float64, a row for each function, and the weights of the examples.

    Weights are (n,); where classes are masked (m, n), with 0 for examples that are left out.
    """
    odds = np.empty((functions(logits.shape[1]), len(logits)))
    if mask_of(logits) is not None:
        weights = np.tile(weights, (len(odds), 1))

    def fill(part: slice) -> None:
        found, masked = _odds(logits[part].double()), mask_of(logits[part])
        if masked is not None:
            out = _left_out(masked)
            found = found.masked_fill(out, 0.0)
            weights[:, part][out.numpy().T] = 0
        odds[:, part] = found.numpy().T

    for _ in map_chunks(fill, logits):
        pass
    return odds, weights


def _left_out(masked: Mask) -> Bool[Tensor, "n m"]:
    """Where log-odds are infinite, of the classes that have a function."""
    return left_out(masked)[:, 1:] if masked.shape[1] == 2 else left_out(masked)


def is_class(labels: np.ndarray, part: slice, classes: int) -> np.ndarray:
    """Whether each label is the class of each of these functions, (functions, n)."""
    own = np.array([1]) if classes == 2 else np.arange(classes)[part]
    return np.asarray(labels == own[:, None])


def check_numbers(name: str, given: Tensor, expected: tuple[int, ...]) -> None:
    """Refuse a fitted tensor that is not finite float64 of the expected shape."""
    if given.dtype != torch.float64 or tuple(given.shape) != expected:
        came = f"{str(given.dtype).removeprefix('torch.')} {tuple(given.shape)}"
        raise ValueError(f"{name} must be float64 of shape {expected}, got {came}")
    if not bool(given.isfinite().all()):
        raise ValueError(f"{name} must be finite")


def _odds(logits: Logits) -> Odds:
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else log_odds(logits)


def _combined(odds: Odds) -> Logits:
    odds = odds.clamp(-FARTHEST, FARTHEST)
    if odds.shape[1] == 1:
        return torch.cat([logsigmoid(-odds), logsigmoid(odds)], 1)
    return torch.log_softmax(logsigmoid(odds), 1)
