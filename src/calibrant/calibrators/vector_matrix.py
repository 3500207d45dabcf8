"""Vector, matrix and Dirichlet calibration: affine maps of logits or log-probabilities."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from calibrant.calibrators.affine import Data, Ridge, Solution, fit_diagonal, fit_full
from calibrant.calibrators.base import Calibrator, Fit, fitting_logits, made_from
from calibrant.calibrators.masks import ever_allowed, log_softmax, mask_of, without_masked
from calibrant.calibrators.temperature import best_inverse
from calibrant.files.checks import human
from calibrant.predictions import Predictions
from calibrant.shapes import Logits

# So little that no score shows it, but enough for one best answer where classes are separable.
LEAST = 1e-6
# Arrays of k x k float64 numbers at the peak of a fit, measured: half of them are the steps that
# the quasi-Newton search remembers, the rest gradients, penalties and eigenvectors.
COPIES = 65
# What a fit of a matrix may take: 2,000 classes.
MAX_BYTES = 2 * 2**30

PerClassTensor = Float64[Tensor, " k"]
Square = Float64[Tensor, "k k"]


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorScaling(Calibrator):
    r"""One factor and one bias for each class.

    $$\log q = \log \mathrm{softmax}(v \odot z + b)$$

    Not the same for logits that differ by a constant in each row: the factors see the constant.

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599.
    """

    scale: PerClassTensor
    bias: PerClassTensor

    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("scale", self.scale, (self.classes,))
        check_shape("bias", self.bias, (self.classes,))

    @classmethod
    def fit(cls, predictions: Predictions) -> "VectorScaling":
        """Minimise the log score, starting at the best temperature.

        A penalty of 1e-6 on the change from there keeps the answer finite and unique.
        """
        logits = fitting_logits(predictions, every_class=True).double()
        inverse = best_inverse(predictions, logits).inverse
        found = fit_diagonal(data_of(predictions, logits.numpy() * inverse), Ridge(LEAST, LEAST))
        return cls(
            classes=predictions.classes,
            scale=torch.from_numpy(found.weight * inverse),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Scale, shift, and normalise."""
        masked = mask_of(logits)
        given = without_masked(logits, masked)
        return log_softmax(given * self.scale.to(logits) + self.bias.to(logits), masked)


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixScaling(Calibrator):
    r"""A whole matrix and a bias.

    $$\log q = \log \mathrm{softmax}(W z + b)$$

    With many classes it fits noise: `StructuredMatrixScaling` is the same map held back where the
    data do not speak. Fewer than k (k + 1) examples, one for each number, are refused. A masked
    class has no row and no column: W z sums over the allowed classes only.

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599.
    """

    weight: Square
    bias: PerClassTensor

    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("weight", self.weight, (self.classes, self.classes))
        check_shape("bias", self.bias, (self.classes,))

    @classmethod
    def fit(cls, predictions: Predictions) -> "MatrixScaling":
        """Minimise the log score, starting at the best temperature.

        A penalty of 1e-6 on the change from there keeps the answer finite and unique.
        """
        refuse_large(predictions.classes)
        refuse_few(predictions)
        logits = fitting_logits(predictions, every_class=True).double()
        inverse = best_inverse(predictions, logits).inverse
        found = fit_full(data_of(predictions, logits.numpy() * inverse), Ridge(LEAST, LEAST, LEAST))
        return cls(
            classes=predictions.classes,
            weight=torch.from_numpy(found.weight * inverse),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Multiply, shift, and normalise."""
        masked = mask_of(logits)
        given = without_masked(logits, masked)
        return log_softmax(given @ self.weight.to(logits).T + self.bias.to(logits), masked)


@dataclass(frozen=True, eq=False, kw_only=True)
class DirichletCalibration(MatrixScaling):
    r"""A matrix and a bias on log-probabilities, its off-diagonal part and the bias held back.

    $$\log q = \log \mathrm{softmax}(W \log p + b)$$

    fitted with ODIR, a penalty of $\lambda$ times the mean square off the diagonal and $\mu$ times
    that of the bias. It is the map one gets if probabilities are Dirichlet distributed within
    each class.

    References:
        Kull et al., Beyond temperature scaling, NeurIPS 2019, arXiv:1910.12656.
    """

    @classmethod
    def fit(
        cls, predictions: Predictions, *, off_diagonal: float = 1e-3, bias: float = 1e-3
    ) -> "DirichletCalibration":
        """Minimise the log score and the penalty.

        Args:
            predictions: held-out examples.
            off_diagonal: lambda; 1e-5 to 1e-1 are usual.
            bias: mu; 1e-5 to 1e-1 are usual.
        """
        check_strength("off_diagonal", off_diagonal)
        check_strength("bias", bias)
        refuse_large(predictions.classes)
        refuse_few(predictions)
        logits = fitting_logits(predictions, every_class=True).double()
        k = int(ever_allowed(logits).sum())
        inverse = best_inverse(predictions, logits).inverse
        log_p = torch.log_softmax(logits, 1).numpy()
        # The solver sees log p / T, so what it changes in its matrix is T times the change here.
        off_diagonal *= inverse**2 / (k * (k - 1))
        ridge = Ridge(max(bias / k, LEAST), LEAST, max(off_diagonal, LEAST))
        found = fit_full(data_of(predictions, log_p * inverse), ridge)
        return cls(
            classes=predictions.classes,
            weight=torch.from_numpy(found.weight * inverse),
            bias=torch.from_numpy(found.bias),
            origin=affine_origin(predictions, found),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Multiply log-probabilities, shift, and normalise."""
        return super().log_probs(torch.log_softmax(logits, 1))


def check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape, and one that is not finite."""
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite")


def check_strength(name: str, value: float) -> None:
    """Refuse a penalty that would reward."""
    if not 0 <= value < np.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def refuse_large(classes: int) -> None:
    """Refuse to fit a matrix that would take more memory than `MAX_BYTES`."""
    needed = 8 * COPIES * classes * (classes + 1)
    if needed > MAX_BYTES:
        raise ValueError(
            f"fitting a matrix of {classes:,} x {classes:,} classes needs about {human(needed)} of "
            f"memory, the limit is {human(MAX_BYTES)}; use vector, structured_vector or temperature"
        )


def refuse_few(predictions: Predictions) -> None:
    """Refuse to fit a matrix to fewer examples than it has numbers."""
    k = int(ever_allowed(predictions.logits).sum())
    if len(predictions) < k * (k + 1):
        raise ValueError(
            f"a {k} x {k} matrix and a bias need at least {k * (k + 1):,} examples, got "
            f"{len(predictions):,}; structured_matrix is regularised and does with fewer"
        )


def data_of(predictions: Predictions, scores: np.ndarray) -> Data:
    """Scores with the labels and weights of the predictions, without rows of weight zero.

    Scores of -inf are those of masked classes.
    """
    weights, labels = predictions.example_weights, predictions.labels.numpy()
    counts = weights > 0
    if not counts.all():
        scores, labels, weights = scores[counts], labels[counts], weights[counts]
    masked = np.isneginf(scores) if scores.min() == -np.inf else None
    if masked is not None:
        scores = np.where(masked, 0.0, scores)
    return Data(scores, labels, weights / weights.sum(), masked)


def affine_origin(predictions: Predictions, found: Solution) -> Fit:
    """Record how the search ended."""
    remark = "" if found.converged else f"no convergence, gradient norm {found.gradient_norm:.1e}"
    return made_from(
        predictions,
        converged=found.converged,
        gradient_norm=found.gradient_norm,
        remark=remark,
    )
