"""Venn-Abers calibration: two isotonic regressions, one for each label of the new example."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import check_tensor, fitting_logits, made_from
from calibrant.calibrators.isotonic import check_offsets
from calibrant.calibrators.masks import infinite_odds, mask_of
from calibrant.calibrators.one_versus_rest import (
    Odds,
    OneVersusRest,
    binary_problems,
    odds_of,
)
from calibrant.calibrators.venn_abers_cells import Cells, cells_of
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class VennAbers(OneVersusRest):
    r"""For each class, isotonic regression with the new example added under either label.

    $$q_j \propto \frac{p_1}{1 - p_0 + p_1}, \qquad p_y = f_y(x), \qquad
    f_y = \arg\min_{f\ \mathrm{increasing}} (y - f(x))^2 + \sum_i w_i\,(1[y_i = j] - f(x_i))^2$$

    A new example with log-odds x of class j joins the examples of the fit, once as "not class j",
    which gives $p_0$, and once as "class j", which gives $p_1 \ge p_0$. If it is exchangeable
    with them, one of the two is perfectly calibrated: that of its true label (for class j against
    the rest, before the division by the sum). `interval` returns both. The merged value lies
    between them and makes the larger of the two regrets in log loss as small as possible; it is
    never 0 or 1. The fit computes $p_0$ and $p_1$ exactly for every x: they are step functions, of
    up to twice as many steps as examples. So the gradient is zero, and different probabilities may
    become equal.

    In the cross form, `folds` above 1, the examples are divided and the functions of the parts
    merged by geometric means G: $G(p_1) / (G(1 - p_0) + G(p_1))$. It has no guarantee. On tables
    with 2 to 5 classes its held-out NLL was higher by 0.002 to 0.08 (5 folds) with up to 1,000
    examples of many classes, and lower by up to 0.0006 only for two classes and 1,000 examples or
    more. So one regression of all examples is the default.

    Attributes:
        edges: log-odds between the cells, concatenated over functions; a score on an edge is in
            the lower cell.
        low: p0 in each cell; in the cross form 1 - G(1 - p0).
        high: p1 in each cell; in the cross form G(p1).
        offsets: start of each function in `low` and `high`, and the end; m + 1 integers. Functions
            have one edge less than cells.

    References:
        Vovk and Petej, Venn-Abers Predictors, UAI 2014, arXiv:1211.0025.
        Vovk, Petej and Fedorova, Large-Scale Probabilistic Predictors with and without Guarantees
        of Validity, NeurIPS 2015, arXiv:1511.00213.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> fitted = VennAbers.fit(p)
        >>> round(float(fitted([[0.0, 2.0]])[0, 1].exp()), 1)  # the logit should be 1: 0.73
        0.7
        >>> low, high = fitted.interval([[0.0, 2.0]])
        >>> bool(low[0, 1] < high[0, 1])
        True
    """

    edges: Tensor
    low: Tensor
    high: Tensor
    offsets: Tensor

    nonparametric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_offsets(self.offsets, self.classes)
        cells = int(self.offsets[-1])
        check_tensor("edges", self.edges, (cells - len(self.offsets) + 1,))
        inner = torch.ones(cells, dtype=torch.bool)
        inner[self.offsets[:-1]] = False
        # NaN before the first edge of each function, which compares as false.
        edges = torch.full((cells,), torch.nan, dtype=torch.float64)
        edges[inner] = self.edges
        if bool((edges.diff() < 0).any()):
            raise ValueError("edges must not decrease within a function")
        for name, value in (("low", self.low), ("high", self.high)):
            check_tensor(name, value, (cells,))
            if bool((value.diff() < 0)[inner[1:]].any()):
                raise ValueError(f"{name} must not decrease within a function")
        if not bool(((self.low >= 0) & (self.low < 1) & (self.high > 0) & (self.high <= 1)).all()):
            raise ValueError("low must lie in [0, 1), high in (0, 1]")

    @classmethod
    def fit(cls, predictions: Predictions, *, folds: int = 1) -> "VennAbers":
        """Compute p0 and p1 for all scores.

        Args:
            predictions: held-out examples; every class must occur.
            folds: number of parts for the cross form; 1 uses all examples at once. Examples are
                dealt to the parts in the order of their scores, separately for each class; a
                weight is divided like copies.
        """
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 1:
            raise ValueError(f"folds must be an integer of at least 1, got {folds!r}")
        logits = fitting_logits(predictions, every_class=True)
        problems = binary_problems(predictions, logits)

        def of_classes(part: slice) -> list[Cells]:
            own, weights = problems.of(part)
            each = zip(problems.odds[part], own, np.broadcast_to(weights, own.shape), strict=True)
            return [cells_of(*one, folds) for one in each]

        parts = map_chunks(of_classes, torch.from_numpy(problems.odds))
        fitted = [each for part in parts for each in part]
        edges, low, high = (
            torch.from_numpy(np.concatenate(each)) for each in zip(*fitted, strict=True)
        )
        return cls(
            classes=predictions.classes,
            edges=edges,
            low=low,
            high=high,
            offsets=torch.tensor([0, *(len(each.low) for each in fitted)]).cumsum(0),
            origin=made_from(predictions),
        )

    def map_odds(self, odds: Odds) -> Odds:
        """Log-odds of the merged probability, log(p1) - log(1 - p0)."""
        merged = self.high.log() - torch.log1p(-self.low)
        return merged.to(odds)[self._cells(odds)]

    def interval(self, logits: Any) -> tuple[Tensor, Tensor]:
        """Return p0 and p1 of each class, before the division by the sum; (n, k) each.

        The width shows how much the examples of the fit determine the probability: it is large
        where they are few, and it does not shrink where the label is uncertain. It is not a
        confidence interval. For two classes the ends of class 0 are 1 - p1 and 1 - p0, and the
        calibrated probability is between the ends; for more classes the division by the sum may
        move it out. In the cross form the ends are geometric means, in increasing order.
        Both ends are 0 for masked classes, and 1 for the only class that is allowed.
        """
        scores = self.checked(logits)
        masked, odds = mask_of(scores), odds_of(scores)
        cells = self._cells(odds.nan_to_num(0.0))
        low, high = (each.to(odds)[cells] for each in (self.low, self.high))
        low, high = torch.minimum(low, high), torch.maximum(low, high)
        if self.classes == 2:
            low, high = torch.cat([1 - high, low], 1), torch.cat([1 - low, high], 1)
        if masked is not None:
            alone = infinite_odds(masked) & ~masked
            low, high = (
                each.masked_fill(masked, 0.0).masked_fill(alone, 1.0) for each in (low, high)
            )
        return low, high

    def _cells(self, odds: Odds) -> Tensor:
        """Index of the cell of each score in `low` and `high`, (n, m)."""
        offsets = self.offsets.to(odds.device)
        counts = offsets.diff()[:, None] - 1
        column = torch.arange(int(counts.max()), device=odds.device)
        table = torch.full((len(counts), len(column)), torch.inf, device=odds.device).to(odds)
        table[column < counts] = self.edges.to(odds)
        return (torch.searchsorted(table, odds.detach().T.contiguous()) + offsets[:-1, None]).T
