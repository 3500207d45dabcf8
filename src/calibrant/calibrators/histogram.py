"""Histogram binning: the frequency of the class in each bin of scores."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from calibrant.calibrators.base import check_tensor, fitting_logits, made_from
from calibrant.calibrators.masks import ever_allowed
from calibrant.calibrators.one_versus_rest import (
    Odds,
    OneVersusRest,
    binary_problems,
    check_probs,
    functions,
)
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Values

Edges = Float64[Tensor, "m b"]
Frequencies = Float64[Tensor, "m b+1"]
Scores = Float64[Tensor, "m n"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HistogramBinning(OneVersusRest):
    r"""For each class, the frequency in the bin that its probability falls into.

    $$q_j \propto \frac{\sum_{i \in B} w_i\,1[y_i = j] + 1 / k}{\sum_{i \in B} w_i + 1},
    \qquad B \ni p_j$$

    One pseudo-example, spread evenly over the classes, keeps all values between 0 and 1; an empty
    bin has the probability of its centre. The map is constant within a bin: the predicted class
    may change and the NLL often gets worse, while binned calibration errors become very small.
    The gradient is zero.

    Attributes:
        edges: (m, bins - 1) log-odds between the bins; a score on an edge is in the lower bin.
        values: (m, bins) probabilities.

    References:
        Zadrozny and Elkan, Obtaining Calibrated Probability Estimates from Decision Trees and
        Naive Bayesian Classifiers, ICML 2001.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> HistogramBinning.fit(p, bins=10).values.shape
        torch.Size([1, 10])
    """

    edges: Tensor
    values: Tensor

    nonparametric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        bins = self.values.shape[1] if self.values.ndim == 2 else 0
        if bins < 1:
            raise ValueError(f"values must be (m, bins), got {tuple(self.values.shape)}")
        rows = functions(self.classes)
        check_tensor("values", self.values, (rows, bins))
        check_tensor("edges", self.edges, (rows, bins - 1))
        if bool((self.edges.diff(dim=1) < 0).any()):
            raise ValueError("edges must not decrease")
        check_probs(self.values)

    @classmethod
    def fit(
        cls, predictions: Predictions, *, bins: int = 15, equal_mass: bool = True
    ) -> "HistogramBinning":
        """Count the examples of each class in each bin.

        Args:
            predictions: held-out examples; every class must occur.
            bins: number of bins for each class.
            equal_mass: the same number of examples in each bin (ties stay in one bin); if False,
                bins of equal width in probability.
        """
        check_bins(bins)
        logits = fitting_logits(predictions, every_class=True)
        problems, classes = binary_problems(predictions, logits), predictions.classes
        # The part of the pseudo-example that belongs to one class.
        share = 1 / int(ever_allowed(logits).sum())
        least = share / (float(predictions.example_weights.sum()) + 1)

        def of_classes(part: slice) -> tuple[Edges, Frequencies]:
            scores = torch.from_numpy(problems.odds[part])
            own, counts = problems.of(part)
            edges = edges_between(scores, counts, bins, equal_mass=equal_mass)
            size, hits = bin_sums(edges, scores, np.broadcast_to(counts, own.shape), own * counts)
            centre = np.clip(centres(edges), least, 1 - least)
            means = (hits + share) / (size + 1)
            return edges, torch.from_numpy(np.where(size > 0, means, centre))

        found = zip(*map_chunks(of_classes, torch.from_numpy(problems.odds)), strict=True)
        edges, values = (torch.cat(each) for each in found)
        return cls(classes=classes, edges=edges, values=values, origin=made_from(predictions))

    def map_odds(self, odds: Odds) -> Odds:
        """Log-odds of the frequency in the bin."""
        edges, log_odds = self.edges.to(odds), torch.logit(self.values).to(odds)
        bin_of = torch.searchsorted(edges, odds.detach().T.contiguous())
        return log_odds.gather(1, bin_of).T


def _equal_width(functions: int, bins: int) -> Edges:
    inner = [math.log(at / (bins - at)) for at in range(1, bins)]
    return torch.tensor(inner, dtype=torch.float64).repeat(functions, 1)


def check_bins(bins: int) -> None:
    """Refuse a number of bins that is not a positive integer."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be an integer of at least 1, got {bins!r}")


def edges_between(scores: Scores, weights: np.ndarray, bins: int, *, equal_mass: bool) -> Edges:
    """Edges between bins; weights are (n,), or (m, n) if they differ by class."""
    if not equal_mass:
        return _equal_width(len(scores), bins)
    if weights.ndim == 1:
        return _equal_mass(scores, weights, bins)
    each = zip(scores, weights, strict=True)
    return torch.cat([_equal_mass(one[None], weight, bins) for one, weight in each])


def bin_sums(edges: Edges, scores: Scores, *summed: np.ndarray) -> list[np.ndarray]:
    """Sums of arrays, (m, n) each, over the bins of each class, (m, bins)."""
    rows, bins = len(scores), edges.shape[1] + 1
    # A unique index for each bin of each class, so that one bincount is enough.
    bin_of = torch.searchsorted(edges, scores).numpy() + bins * np.arange(rows)[:, None]
    flat = bin_of.ravel()
    return [np.bincount(flat, each.ravel(), rows * bins).reshape(-1, bins) for each in summed]


def centres(edges: Edges) -> np.ndarray:
    """Probability halfway between the ends of each bin, (m, bins)."""
    ends = np.pad(edges.sigmoid().numpy(), ((0, 0), (1, 1)), constant_values=(0, 1))
    return np.asarray((ends[:, 1:] + ends[:, :-1]) / 2)


def _equal_mass(odds: Scores, weights: Values, bins: int) -> Edges:
    """Cut halfway between the two distinct scores around each quantile of the weight."""
    used = torch.from_numpy(np.flatnonzero(weights > 0))
    if not len(used):
        return _equal_width(len(odds), bins)
    scores, order = odds[:, used].sort(dim=1)
    mass = torch.from_numpy(weights)[used][order].cumsum(1)
    # A quantile that is reached up to rounding counts as reached.
    shares = mass[:, -1:] * (torch.arange(1, bins, dtype=torch.float64) / bins) * (1 - 1e-12)
    at = scores.gather(1, torch.searchsorted(mass, shares).clamp(max=len(used) - 1))
    after = torch.searchsorted(scores, at, right=True)
    before = torch.searchsorted(scores, at)
    # Ties at the maximum form their own bin.
    cut = torch.where(after < len(used), after, before).clamp(1, max(1, len(used) - 1))
    last = len(used) - 1
    return (scores.gather(1, (cut - 1).clamp(max=last)) + scores.gather(1, cut.clamp(max=last))) / 2
