r"""Structured vector and matrix scaling: affine maps held back by how little the data can say.

Both first apply a temperature and mix in a little of the uniform distribution,

$$x = \log\bigl((1 - \epsilon)\, \mathrm{softmax}(z / T) + \epsilon / k\bigr), \qquad
  \epsilon = \frac{1}{n + 1},$$

which bounds the scores; then fit an affine map close to the identity, with the penalty

$$\frac{k}{n} \bigl(\|b\|^2 + \|\mathrm{diag} D\|^2\bigr)
  + \frac{k (k - 1)}{n} \|\mathrm{off} D\|^2.$$

References:
    Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from calibrant.calibrators.affine import Ridge, fit_diagonal, fit_full
from calibrant.calibrators.base import Calibrator, fitting_logits
from calibrant.calibrators.temperature import best_inverse, check_temperature
from calibrant.calibrators.vector_matrix import (
    PerClassTensor,
    Square,
    affine_origin,
    check_shape,
    check_strength,
    data_of,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, kw_only=True)
class StructuredVectorScaling(Calibrator):
    r"""One factor and one bias for each class after a temperature, held back by a penalty.

    $$\log q = \log \mathrm{softmax}((1 + d) \odot x + b)$$

    As the penalty grows it becomes temperature scaling. Good with many classes or few examples.

    References:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
    """

    temperature: float
    mix: float
    scale: PerClassTensor
    bias: PerClassTensor

    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_first_step(self.temperature, self.mix)
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
        temperature, mix, scores = _first_step(predictions)
        unit = predictions.classes / float(predictions.row_weights.sum())
        ridge = Ridge(bias=bias * unit, diagonal=diagonal * unit)
        found = fit_diagonal(data_of(predictions, scores.numpy()), ridge)
        return cls(
            classes=predictions.classes,
            temperature=temperature,
            mix=mix,
            scale=torch.from_numpy(found.weight),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Temper, mix, scale, shift, and normalise."""
        scores = mixed(logits, self.temperature, self.mix)
        return torch.log_softmax(scores * self.scale.to(logits) + self.bias.to(logits), 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class StructuredMatrixScaling(Calibrator):
    r"""A whole matrix and a bias after a temperature, held back by a penalty.

    $$\log q = \log \mathrm{softmax}((I + D) x + b)$$

    As the penalty grows it becomes temperature scaling, as it vanishes matrix scaling. The best
    of the field by log score where classes are up to a few hundred.

    References:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv:2511.03685.
    """

    temperature: float
    mix: float
    weight: Square
    bias: PerClassTensor

    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_first_step(self.temperature, self.mix)
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
        temperature, mix, scores = _first_step(predictions)
        k = predictions.classes
        unit = k / float(predictions.row_weights.sum())
        ridge = Ridge(bias * unit, diagonal * unit, off_diagonal * unit * (k - 1))
        found = fit_full(data_of(predictions, scores.numpy()), ridge)
        return cls(
            classes=k,
            temperature=temperature,
            mix=mix,
            weight=torch.from_numpy(found.weight),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Temper, mix, multiply, shift, and normalise."""
        scores = mixed(logits, self.temperature, self.mix)
        return torch.log_softmax(scores @ self.weight.to(logits).T + self.bias.to(logits), 1)


def mixed(logits: Logits, temperature: float, mix: float) -> Logits:
    """Log of the tempered softmax with a part `mix` of the uniform distribution."""
    tempered = torch.log_softmax(logits / temperature, 1)
    uniform = math.log(mix / logits.shape[1]) if mix else -math.inf
    return torch.logaddexp(tempered + math.log1p(-mix), tempered.new_tensor(uniform))


def check_first_step(temperature: float, mix: float) -> None:
    """Refuse what is not a temperature or not a part of a mixture."""
    check_temperature(temperature)
    if not 0 <= mix < 1:
        raise ValueError(f"mix must lie in [0, 1), got {mix}")


def _first_step(predictions: Predictions) -> tuple[float, float, Logits]:
    """The best temperature, the part to mix in, and the scores after both, in float64."""
    logits = fitting_logits(predictions)
    temperature = 1 / best_inverse(predictions, logits).inverse
    mix = 1 / (float(predictions.row_weights.sum()) + 1)
    return temperature, mix, mixed(logits.double(), temperature, mix)
