"""Logistic functions of the log-odds of a class: Platt, beta and quadratic scaling."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.base import check_tensor, fitting_logits, listed, made_from
from calibrant.calibrators.logistic_solver import Solved, solve
from calibrant.calibrators.one_versus_rest import (
    FARTHEST,
    Odds,
    OneVersusRest,
    binary_problems,
    functions,
)
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions

# Scores (classes times examples) of classes fitted at once: ten arrays of them stay in cache.
ELEMENTS = 1 << 17

Terms = Float[Tensor, "d n m"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogisticScaling(OneVersusRest):
    """Base of Platt, beta and quadratic scaling: log-odds are a weighted sum of terms.

    The binary NLL of each class is convex in the coefficients. It is minimised exactly, by Newton
    steps in float64 for all classes at once. If the terms separate a class from the rest, the
    coefficients would diverge: only then a ridge penalty on the distance to the identity is
    added, 1e-4 times the frequency of the rarer outcome. This gives a warning, and
    `origin.converged` is False.

    Attributes:
        coefficients: (m, d) with m = 1 for two classes, else k.
    """

    coefficients: Tensor

    # Coefficients of the identity map, and the indices of those that must not be negative.
    identity: ClassVar[tuple[float, ...]]
    nonnegative: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = (functions(self.classes), len(self.identity))
        check_tensor("coefficients", self.coefficients, expected)
        if self.nonnegative and bool((self.coefficients[:, list(self.nonnegative)] < 0).any()):
            raise ValueError("coefficients a and b must not be negative")

    @staticmethod
    @abstractmethod
    def terms(odds: Odds) -> Terms:
        """Stack the terms that the coefficients multiply along the first axis."""

    @classmethod
    def fit(cls, predictions: Predictions, *, smooth_targets: bool = False) -> "LogisticScaling":
        """Minimise the binary NLL of each class.

        Args:
            predictions: held-out examples; every class must occur.
            smooth_targets: Platt's targets (a + 1) / (a + 2) and 1 / (b + 2) instead of 1 and 0,
                for a class with a examples of its own and b others. Helps with few examples.
        """
        logits = fitting_logits(predictions, every_class=True)
        problems, identity = binary_problems(predictions, logits), np.array(cls.identity)

        def of_classes(part: slice) -> Solved:
            own, counts = problems.of(part)
            targets = own.astype(np.float64)
            if smooth_targets:
                inside = (targets * counts).sum(1, keepdims=True)
                outside = counts.sum(-1, keepdims=True) - inside
                targets = np.where(own, (inside + 1) / (inside + 2), 1 / (outside + 2))
            odds = torch.from_numpy(problems.odds[part]).T
            terms = cls.terms(odds).permute(2, 0, 1).contiguous()
            return solve(terms.numpy(), targets, counts, identity, cls.nonnegative)

        scores = torch.from_numpy(problems.odds)
        parts = list(map_chunks(of_classes, scores, elements=ELEMENTS))
        solved = Solved(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        gradient, remark = float(np.abs(solved.gradient).max()), _remark(solved, predictions)
        return cls(
            classes=predictions.classes,
            coefficients=torch.from_numpy(solved.coefficients),
            origin=made_from(predictions, gradient, remark),
        )

    def map_odds(self, odds: Odds) -> Odds:
        """Weighted sum of the terms."""
        return (self.terms(odds) * self.coefficients.to(odds).T[:, None]).sum(0)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlattScaling(LogisticScaling):
    r"""A linear function of the log-odds of each class.

    $$q_j \propto \sigma(a_j x_j + b_j), \qquad x_j = \log \frac{p_j}{1 - p_j}$$

    For two classes this is logistic regression on $x = z_1 - z_0$; with $b = 0$ it is temperature
    scaling. `coefficients` has columns a, b.

    References:
        Platt, Probabilistic Outputs for Support Vector Machines, Advances in Large Margin
        Classifiers, 1999.
        Zadrozny and Elkan, Transforming Classifier Scores into Accurate Multiclass Probability
        Estimates, KDD 2002: one versus rest, divided by the sum.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> [[round(c, 1) + 0.0 for c in row] for row in PlattScaling.fit(p).coefficients.tolist()]
        [[0.5, 0.0]]
    """

    identity: ClassVar[tuple[float, ...]] = (1.0, 0.0)
    entry_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"coefficients": ("a", "b")}

    @staticmethod
    def terms(odds: Odds) -> Terms:
        """Log-odds and one."""
        return torch.stack([odds, torch.ones_like(odds)])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BetaCalibration(LogisticScaling):
    r"""Separate slopes for the log-probability of a class and of its complement.

    $$q_j \propto \sigma(a_j \log p_j - b_j \log(1 - p_j) + c_j), \qquad a_j, b_j \ge 0$$

    The map is increasing; it includes the identity, a = b = 1 and c = 0, sigmoids and inverse
    sigmoids. It is exact for scores that are beta distributed within either class. Where the
    unconstrained optimum has a negative slope, that slope is set to 0 and the others are refitted,
    which is the exact constrained optimum. `coefficients` has columns a, b, c.

    References:
        Kull et al., Beta calibration: a well-founded and easily implemented improvement on
        logistic calibration for binary classifiers, AISTATS 2017.
    """

    identity: ClassVar[tuple[float, ...]] = (1.0, 1.0, 0.0)
    entry_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"coefficients": ("a", "b", "c")}
    nonnegative: ClassVar[tuple[int, ...]] = (0, 1)

    @staticmethod
    def terms(odds: Odds) -> Terms:
        """Log(p) and -log(1 - p), computed from the log-odds so that both are finite, and one."""
        return torch.stack([logsigmoid(odds), -logsigmoid(-odds), torch.ones_like(odds)])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class QuadraticScaling(LogisticScaling):
    r"""A quadratic function of the log-odds of each class.

    $$q_j \propto \sigma(a_j + b_j x_j + c_j x_j^2), \qquad x_j = \log \frac{p_j}{1 - p_j}$$

    It is exact if x is normally distributed within either class, with different variances. The
    map is not monotone: beyond the vertex, perhaps outside the fitted data, confidence decreases
    in x. `coefficients` has columns a, b, c.

    References:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration, 2025,
        arXiv:2511.03685: the quadratic model for two classes.
    """

    identity: ClassVar[tuple[float, ...]] = (0.0, 1.0, 0.0)
    entry_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"coefficients": ("a", "b", "c")}

    @staticmethod
    def terms(odds: Odds) -> Terms:
        """One, log-odds and their square."""
        # An infinite square would be NaN where its coefficient is 0.
        return torch.stack([torch.ones_like(odds), odds, odds.square().clamp(max=FARTHEST)])


def _remark(solved: Solved, predictions: Predictions) -> str:
    separable = ~solved.converged
    if not separable.any():
        return ""
    which = "class 1"
    if predictions.classes > 2:
        shown = listed(predictions, separable)
        which = f"{separable.sum()} of {predictions.classes} classes ({shown})"
    return (
        f"no best fit for {which}: separable from the rest, "
        "coefficients are regularised towards the identity"
    )
