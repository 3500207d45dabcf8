r"""Structured vector and matrix scaling: affine maps regularised by the number of examples.

Both first apply a temperature and mix in a little of the uniform distribution,

$$x = \log\bigl((1 - \epsilon)\, \mathrm{softmax}(z / T) + \epsilon / k\bigr), \qquad
  \epsilon = \frac{1}{n + 1},$$

which bounds the scores (the focal forms have the focal map between the softmax and the mixture);
then they fit an affine map close to the identity, with the penalty

$$\frac{k}{n} \bigl(\|b\|^2 + \|\mathrm{diag} D\|^2\bigr)
  + \frac{k (k - 1)}{n} \|\mathrm{off} D\|^2.$$

k does not count masked classes.

References:
    Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from calibrant.calibrators.affine import Data, Ridge, Solution, fit_diagonal, fit_full
from calibrant.calibrators.base import fitting_logits
from calibrant.calibrators.focal_map import check_gamma, focal_map
from calibrant.calibrators.focal_temperature import best_focal
from calibrant.calibrators.masks import Mask, allowed_counts, ever_allowed, mask_of, without_masked
from calibrant.calibrators.temperature import best_inverse, check_temperature
from calibrant.calibrators.vector_matrix import (
    AffineMap,
    DiagonalMap,
    Map,
    MatrixMap,
    check_penalties,
    data_of,
    from_solution,
    refuse_large,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Structured(AffineMap):
    """Base of all four: a temperature and a mixture with the uniform distribution come first."""

    temperature: float
    mix: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.temperature)
        if not 0 <= self.mix < 1:
            raise ValueError(f"mix must lie in [0, 1), got {self.mix}")

    def first(self, logits: Logits) -> Logits:
        """Log-probabilities before the mixture."""
        return torch.log_softmax(logits / self.temperature, 1)

    def inputs(self, logits: Logits, masked: Mask | None) -> Logits:
        """Log of the mixture; 0 for masked classes."""
        return without_masked(mix_uniform(self.first(logits), self.mix, masked), masked)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FocalFirst(Structured):
    """The same with the focal map after the temperature."""

    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def first(self, logits: Logits) -> Logits:
        """Log-probabilities of focal temperature scaling."""
        return focal_map(logits / self.temperature, self.gamma)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StructuredVectorScaling(DiagonalMap, Structured):
    r"""Temperature, then one regularised factor and bias for each class.

    $$\log q = \log \mathrm{softmax}((1 + d) \odot x + b)$$

    As the penalty grows it becomes temperature scaling. Good with many classes or few examples.
    """

    @classmethod
    def fit(
        cls, predictions: Predictions, *, diagonal: float = 1.0, bias: float = 1.0
    ) -> "StructuredVectorScaling":
        """Minimise the NLL and the penalty.

        Args:
            predictions: held-out examples.
            diagonal: multiplies the penalty of the factors.
            bias: multiplies the penalty of the bias.
        """
        return _fit(cls, fit_diagonal, predictions, diagonal=diagonal, bias=bias)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StructuredMatrixScaling(MatrixMap, Structured):
    r"""Temperature, then a regularised full matrix and bias.

    $$\log q = \log \mathrm{softmax}((I + D) x + b)$$

    As the penalty grows it becomes temperature scaling, as it vanishes matrix scaling. Best NLL
    in the benchmark with up to a few hundred classes.
    """

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        *,
        diagonal: float = 1.0,
        off_diagonal: float = 1.0,
        bias: float = 1.0,
    ) -> "StructuredMatrixScaling":
        """Minimise the NLL and the penalty.

        Args:
            predictions: held-out examples.
            diagonal: multiplies the penalty of the diagonal.
            off_diagonal: multiplies the penalty of the rest of the matrix.
            bias: multiplies the penalty of the bias.
        """
        check_penalties(off_diagonal=off_diagonal)
        refuse_large(predictions.classes)
        penalties = {"diagonal": diagonal, "off_diagonal": off_diagonal, "bias": bias}
        return _fit(cls, fit_full, predictions, **penalties)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FocalStructuredVectorScaling(FocalFirst, StructuredVectorScaling):
    r"""Focal temperature scaling, then one regularised factor and bias for each class.

    `StructuredVectorScaling` whose first step is `FocalTemperatureScaling`; ours, not published.
    """


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FocalStructuredMatrixScaling(FocalFirst, StructuredMatrixScaling):
    r"""Focal temperature scaling, then a regularised full matrix and bias.

    `StructuredMatrixScaling` whose first step is `FocalTemperatureScaling`; ours, not published.
    The focal map corrects the tail of the distribution, the matrix the classes: on real networks
    both gains add up.
    """


def mix_uniform(log_probs: Logits, mix: float, masked: Mask | None = None) -> Logits:
    """Log of a mixture with a fraction `mix` of the uniform distribution over allowed classes."""
    if not mix:
        return log_probs
    added = mix / allowed_counts(masked, log_probs.shape[1])
    found = torch.log(log_probs.exp() * (1 - mix) + added)
    return found if masked is None else found.masked_fill(masked, -torch.inf)


def _fit(
    kind: type[Map],
    solve: Callable[[Data, Ridge], Solution],
    predictions: Predictions,
    **penalties: float,
) -> Map:
    """Fit what precedes the affine map, then the map itself."""
    check_penalties(**penalties)
    logits = fitting_logits(predictions)
    total = float(predictions.example_weights.sum())
    first = {"mix": 1 / (total + 1)}
    if issubclass(kind, FocalFirst):
        inverse, first["gamma"], _, remark = best_focal(predictions, logits)
        log_probs = focal_map(logits.double() * inverse, first["gamma"])
        first["temperature"] = 1 / inverse
    else:
        alone = best_inverse(predictions, logits)
        first["temperature"], remark = 1 / alone.inverse, alone.remark
        log_probs = torch.log_softmax(logits.double() / first["temperature"], 1)
    scores = mix_uniform(log_probs, first["mix"], mask_of(logits))
    k = int(ever_allowed(scores).sum())
    unit = {"bias": k / total, "diagonal": k / total, "off_diagonal": k / total * (k - 1)}
    ridge = Ridge(**{name: weight * unit[name] for name, weight in penalties.items()})
    found = solve(data_of(predictions, scores.numpy()), ridge)
    return from_solution(kind, predictions, found, remark=remark, **first)
