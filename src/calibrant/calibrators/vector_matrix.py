"""Vector, matrix and Dirichlet calibration: affine maps of logits or log-probabilities.

References:
    Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599: vector and
    matrix scaling.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from calibrant.calibrators.affine import Data, Ridge, Solution, fit_diagonal, fit_full
from calibrant.calibrators.base import Calibrator, check_tensor, fitting_logits, made_from
from calibrant.calibrators.masks import Mask, ever_allowed, log_softmax, mask_of, without_masked
from calibrant.calibrators.temperature import all_correct, best_inverse
from calibrant.files.checks import human
from calibrant.predictions import Predictions
from calibrant.shapes import Logits

# Too small to affect a score, but enough for a unique optimum where classes are separable.
LEAST = 1e-6
# Arrays of k x k float64 numbers at the peak of a fit, measured: half of them are the steps that
# L-BFGS remembers, the rest gradients, penalties and eigenvectors.
COPIES = 65
# Memory limit of fitting a matrix: 2,000 classes.
MAX_BYTES = 2 * 2**30

PerClassTensor = Float64[Tensor, " k"]
Square = Float64[Tensor, "k k"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AffineMap(Calibrator):
    """Base of calibrators that are softmax of an affine map of `inputs`."""

    keeps_argmax: ClassVar[bool] = False
    # The field that holds the matrix or its diagonal, and its number of axes.
    weight_field: ClassVar[str]
    axes: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, axes in {self.weight_field: self.axes, "bias": 1}.items():
            check_tensor(name, self.parameters[name], (self.classes,) * axes)

    def inputs(self, logits: Logits, masked: Mask | None) -> Logits:
        """Scores that the affine map is applied to; 0 for masked classes."""
        return without_masked(logits, masked)

    def log_probs(self, logits: Logits) -> Logits:
        """Apply the affine map, and normalise."""
        masked = mask_of(logits)
        scores = self.inputs(logits, masked)
        weight, bias = (self.parameters[name].to(logits) for name in (self.weight_field, "bias"))
        product = scores * weight if self.axes == 1 else scores @ weight.T
        return log_softmax(product + bias, masked)


Map = TypeVar("Map", bound=AffineMap)


def from_solution(
    kind: type[Map],
    predictions: Predictions,
    found: Solution,
    *,
    factor: float = 1.0,
    remark: str = "",
    **others: float,
) -> Map:
    """Make the calibrator of a solution; the weight is multiplied by `factor`.

    A remark says why the fit did not converge for another reason than its search.
    """
    norm = found.gradient_norm
    if not found.converged:
        remark = f"no convergence, gradient norm {norm:.1e}"
    tensors = {kind.weight_field: found.weight * factor, "bias": found.bias}
    return kind(
        classes=predictions.classes,
        origin=made_from(predictions, norm, remark),
        **others,
        **{name: torch.from_numpy(value) for name, value in tensors.items()},
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DiagonalMap(AffineMap):
    """An affine map with one factor and one bias for each class."""

    scale: PerClassTensor
    bias: PerClassTensor

    weight_field: ClassVar[str] = "scale"
    axes: ClassVar[int] = 1


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MatrixMap(AffineMap):
    """An affine map with a full matrix and a bias."""

    weight: Square
    bias: PerClassTensor

    weight_field: ClassVar[str] = "weight"
    axes: ClassVar[int] = 2


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class VectorScaling(DiagonalMap):
    r"""One factor and one bias for each class.

    $$\log q = \log \mathrm{softmax}(v \odot z + b)$$

    Not invariant to a constant added to all logits of an example.
    """

    @classmethod
    def fit(cls, predictions: Predictions) -> "VectorScaling":
        """Minimise the NLL, starting at the best temperature.

        A penalty of 1e-6 on the difference to the start makes the optimum finite and unique.
        If every prediction is correct, it is finite by this penalty alone: the fit warns, and
        counts as not converged.
        """
        inverse, data = _tempered(predictions)
        found = fit_diagonal(data, Ridge(LEAST, LEAST))
        remark = separable_remark(predictions)
        return from_solution(cls, predictions, found, factor=inverse, remark=remark)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MatrixScaling(MatrixMap):
    r"""A full matrix and a bias.

    $$\log q = \log \mathrm{softmax}(W z + b)$$

    It overfits with many classes: `StructuredMatrixScaling` is the regularised form. Needs at
    least k (k + 1) examples, one for each parameter. W z sums over the allowed classes only.
    """

    @classmethod
    def fit(cls, predictions: Predictions) -> "MatrixScaling":
        """Minimise the NLL, starting at the best temperature.

        A penalty of 1e-6 on the difference to the start makes the optimum finite and unique.
        If every prediction is correct, it is finite by this penalty alone: the fit warns, and
        counts as not converged.
        """
        refuse_size(predictions)
        inverse, data = _tempered(predictions)
        found = fit_full(data, Ridge(LEAST, LEAST, LEAST))
        remark = separable_remark(predictions)
        return from_solution(cls, predictions, found, factor=inverse, remark=remark)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DirichletCalibration(MatrixMap):
    r"""A matrix and a bias on log-probabilities; off-diagonal part and bias are regularised.

    $$\log q = \log \mathrm{softmax}(W \log p + b)$$

    fitted with ODIR, a penalty of $\lambda$ times the mean square off the diagonal and $\mu$ times
    that of the bias. It is the exact map if probabilities are Dirichlet distributed within each
    class.

    References:
        Kull et al., Beyond temperature scaling, NeurIPS 2019, arXiv:1910.12656.
    """

    @classmethod
    def fit(
        cls, predictions: Predictions, *, off_diagonal: float = 1e-3, bias: float = 1e-3
    ) -> "DirichletCalibration":
        """Minimise the NLL and the penalty.

        If every prediction is correct, the diagonal has no finite optimum: the fit warns, and
        counts as not converged.

        Args:
            predictions: held-out examples.
            off_diagonal: lambda; 1e-5 to 1e-1 are usual.
            bias: mu; 1e-5 to 1e-1 are usual.
        """
        check_penalties(off_diagonal=off_diagonal, bias=bias)
        refuse_size(predictions)
        inverse, data = _tempered(predictions, log_probs=True)
        k = int(ever_allowed(predictions.logits).sum())
        # The solver sees log p / T: its change of the matrix is T times the change here.
        off_diagonal *= inverse**2 / (k * (k - 1))
        ridge = Ridge(max(bias / k, LEAST), LEAST, max(off_diagonal, LEAST))
        found = fit_full(data, ridge)
        remark = separable_remark(predictions)
        return from_solution(cls, predictions, found, factor=inverse, remark=remark)

    def inputs(self, logits: Logits, masked: Mask | None) -> Logits:
        """Log-probabilities."""
        return without_masked(torch.log_softmax(logits, 1), masked)


def check_penalties(**weights: float) -> None:
    """Refuse negative or infinite penalty weights."""
    for name, value in weights.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def refuse_large(classes: int) -> None:
    """Refuse to fit a matrix that needs more memory than `MAX_BYTES`."""
    needed = 8 * COPIES * classes * (classes + 1)
    if needed > MAX_BYTES:
        raise ValueError(
            f"fitting a matrix of {classes:,} x {classes:,} classes needs about {human(needed)} of "
            f"memory, the limit is {human(MAX_BYTES)}; use vector, structured_vector or temperature"
        )


def refuse_size(predictions: Predictions) -> None:
    """Refuse to fit a matrix that is too large, or has more parameters than there are examples."""
    refuse_large(predictions.classes)
    k = int(ever_allowed(predictions.logits).sum())
    if len(predictions) < k * (k + 1):
        raise ValueError(
            f"a {k} x {k} matrix and a bias need at least {k * (k + 1):,} examples, got "
            f"{len(predictions):,}; structured_matrix is regularised and needs fewer"
        )


def separable_remark(predictions: Predictions) -> str:
    """Say that no parameters are best, because larger ones always are better; empty if not so."""
    if not all_correct(predictions):
        return ""
    return "no finite optimum: every prediction is correct, the examples are separable"


def _tempered(predictions: Predictions, *, log_probs: bool = False) -> tuple[float, Data]:
    """Fit 1/T, and return it with the data of the logits, or log-probabilities, divided by T."""
    logits = fitting_logits(predictions, every_class=True).double()
    inverse = best_inverse(predictions, logits).inverse
    scores = torch.log_softmax(logits, 1) if log_probs else logits
    return inverse, data_of(predictions, scores.numpy() * inverse)


def data_of(predictions: Predictions, scores: np.ndarray) -> Data:
    """Combine scores, -inf where masked, with labels and weights; drop examples of weight zero."""
    weights, labels = predictions.example_weights, predictions.labels.numpy()
    counts = weights > 0
    if not counts.all():
        scores, labels, weights = scores[counts], labels[counts], weights[counts]
    masked = np.isneginf(scores) if scores.min() == -np.inf else None
    if masked is not None:
        scores = np.where(masked, 0.0, scores)
    return Data(scores, labels, weights / weights.sum(), masked)
