r"""Structured vector and matrix scaling: affine maps held back by how little the data can say.

Both first apply a temperature and mix in a little of the uniform distribution,

$$x = \log\bigl((1 - \epsilon)\, \mathrm{softmax}(z / T) + \epsilon / k\bigr), \qquad
  \epsilon = \frac{1}{n + 1},$$

which bounds the scores (the focal forms have the focal map between the softmax and the mixture);
then fit an affine map close to the identity, with the penalty

$$\frac{k}{n} \bigl(\|b\|^2 + \|\mathrm{diag} D\|^2\bigr)
  + \frac{k (k - 1)}{n} \|\mathrm{off} D\|^2.$$

Masked classes do not count in k.

References:
    Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from calibrant.calibrators.affine import Ridge, fit_diagonal, fit_full
from calibrant.calibrators.base import Calibrator, fitting_logits
from calibrant.calibrators.focal_map import check_gamma, focal_map
from calibrant.calibrators.focal_temperature import best_focal, with_logits
from calibrant.calibrators.masks import (
    Mask,
    allowed_counts,
    ever_allowed,
    log_softmax,
    mask_of,
    without_masked,
)
from calibrant.calibrators.temperature import best_inverse, check_temperature
from calibrant.calibrators.vector_matrix import (
    PerClassTensor,
    Square,
    affine_origin,
    check_shape,
    check_strength,
    data_of,
    refuse_large,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, kw_only=True)
class Structured(Calibrator):
    """What all four have in common: the step before the affine map."""

    temperature: float
    mix: float

    keeps_argmax: ClassVar[bool] = False
    focal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_first_step(self.temperature, self.mix)

    def first(self, logits: Logits) -> Logits:
        """Log-probabilities before the mixture."""
        return torch.log_softmax(logits / self.temperature, 1)

    def scores(self, logits: Logits, masked: Mask | None) -> Logits:
        """What the affine map is applied to: 0 for masked classes."""
        return without_masked(mixed(self.first(logits), self.mix, masked), masked)


@dataclass(frozen=True, eq=False, kw_only=True)
class FocalFirst(Structured):
    """The same with the focal map after the temperature."""

    gamma: float

    focal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def first(self, logits: Logits) -> Logits:
        """Log-probabilities of focal temperature scaling."""
        return focal_map(logits / self.temperature, self.gamma)


@dataclass(frozen=True, eq=False, kw_only=True)
class StructuredVectorScaling(Structured):
    r"""One factor and one bias for each class after a temperature, held back by a penalty.

    $$\log q = \log \mathrm{softmax}((1 + d) \odot x + b)$$

    As the penalty grows it becomes temperature scaling. Good with many classes or few examples.

    References:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
    """

    scale: PerClassTensor
    bias: PerClassTensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("scale", self.scale, (self.classes,))
        check_shape("bias", self.bias, (self.classes,))

    @classmethod
    def fit(
        cls, predictions: Predictions, *, diagonal: float = 1.0, bias: float = 1.0
    ) -> "StructuredVectorScaling":
        """Minimise the log score and the penalty.

        Args:
            predictions: held-out examples.
            diagonal: multiplies the penalty of the factors.
            bias: multiplies the penalty of the bias.
        """
        check_strength("diagonal", diagonal)
        check_strength("bias", bias)
        first, scores = _first_step(predictions, focal=cls.focal)
        unit = int(ever_allowed(scores).sum()) / float(predictions.example_weights.sum())
        ridge = Ridge(bias=bias * unit, diagonal=diagonal * unit)
        found = fit_diagonal(data_of(predictions, scores.numpy()), ridge)
        return cls(
            classes=predictions.classes,
            **first,
            scale=torch.from_numpy(found.weight),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Temper, mix, scale, shift, and normalise."""
        masked = mask_of(logits)
        scores = self.scores(logits, masked)
        return log_softmax(scores * self.scale.to(logits) + self.bias.to(logits), masked)


@dataclass(frozen=True, eq=False, kw_only=True)
class StructuredMatrixScaling(Structured):
    r"""A whole matrix and a bias after a temperature, held back by a penalty.

    $$\log q = \log \mathrm{softmax}((I + D) x + b)$$

    As the penalty grows it becomes temperature scaling, as it vanishes matrix scaling. The best
    of the field by log score where classes are up to a few hundred.

    References:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
    """

    weight: Square
    bias: PerClassTensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("weight", self.weight, (self.classes, self.classes))
        check_shape("bias", self.bias, (self.classes,))

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        *,
        diagonal: float = 1.0,
        off_diagonal: float = 1.0,
        bias: float = 1.0,
    ) -> "StructuredMatrixScaling":
        """Minimise the log score and the penalty.

        Args:
            predictions: held-out examples.
            diagonal: multiplies the penalty of the diagonal.
            off_diagonal: multiplies the penalty of the rest of the matrix.
            bias: multiplies the penalty of the bias.
        """
        check_strength("diagonal", diagonal)
        check_strength("off_diagonal", off_diagonal)
        check_strength("bias", bias)
        refuse_large(predictions.classes)
        first, scores = _first_step(predictions, focal=cls.focal)
        k = int(ever_allowed(scores).sum())
        unit = k / float(predictions.example_weights.sum())
        ridge = Ridge(bias * unit, diagonal * unit, off_diagonal * unit * (k - 1))
        found = fit_full(data_of(predictions, scores.numpy()), ridge)
        return cls(
            classes=predictions.classes,
            **first,
            weight=torch.from_numpy(found.weight),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Temper, mix, multiply, shift, and normalise."""
        masked = mask_of(logits)
        scores = self.scores(logits, masked)
        return log_softmax(scores @ self.weight.to(logits).T + self.bias.to(logits), masked)


@dataclass(frozen=True, eq=False, kw_only=True)
class FocalStructuredVectorScaling(FocalFirst, StructuredVectorScaling):
    r"""One factor and one bias for each class after focal temperature scaling, held back.

    `StructuredVectorScaling` whose first step is `FocalTemperatureScaling`; ours, not published.
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class FocalStructuredMatrixScaling(FocalFirst, StructuredMatrixScaling):
    r"""A whole matrix and a bias after focal temperature scaling, held back by a penalty.

    `StructuredMatrixScaling` whose first step is `FocalTemperatureScaling`; ours, not published.
    What the focal map repairs, the shape of the tail, and what the matrix repairs, the classes,
    are different things: on real networks the gains add.
    """


def mixed(log_probs: Logits, mix: float, masked: Mask | None = None) -> Logits:
    """Log of probabilities with a part `mix` of the uniform distribution over allowed classes."""
    if not mix:
        return log_probs
    added = mix / allowed_counts(masked, log_probs.shape[1])
    found = torch.log(log_probs.exp() * (1 - mix) + added)
    return found if masked is None else found.masked_fill(masked, -torch.inf)


def check_first_step(temperature: float, mix: float) -> None:
    """Refuse what is not a temperature or not a part of a mixture."""
    check_temperature(temperature)
    if not 0 <= mix < 1:
        raise ValueError(f"mix must lie in [0, 1), got {mix}")


def _first_step(predictions: Predictions, *, focal: bool) -> tuple[dict[str, float], Logits]:
    """The numbers of the step before the affine map, and the scores after it, in float64."""
    logits = fitting_logits(predictions)
    masked, mix = mask_of(logits), 1 / (float(predictions.example_weights.sum()) + 1)
    if not focal:
        temperature = 1 / best_inverse(predictions, logits).inverse
        log_probs = torch.log_softmax(logits.double() / temperature, 1)
        return {"temperature": temperature, "mix": mix}, mixed(log_probs, mix, masked)
    inverse, gamma, _, _ = best_focal(with_logits(predictions, logits))
    log_probs = focal_map(logits.double() * inverse, gamma)
    return {"temperature": 1 / inverse, "mix": mix, "gamma": gamma}, mixed(log_probs, mix, masked)
