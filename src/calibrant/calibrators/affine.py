r"""Multinomial logistic regression of labels on scores: the solver of vector and matrix scaling.

Minimises, over a difference D from the identity and a bias b,

$$\frac{1}{\sum_i w_i} \sum_i w_i\, \mathrm{CE}\bigl((I + D) x_i + b,\ y_i\bigr)
  + \rho_d \|\mathrm{diag} D\|^2 + \rho_o \|\mathrm{off} D\|^2 + \rho_b \|b\|^2,$$

which is convex. L-BFGS-B is preconditioned by the Hessian at the start, which takes a dozen passes
instead of hundreds; with many classes by its Kronecker factors (two k x k matrices), and where
the penalty dominates, as with a thousand classes, by its diagonal. The first passes over many
scores run in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import OptimizeResult, minimize

from calibrant.calibrators.blas_threads import one_thread_each
from calibrant.example_stats import map_chunks
from calibrant.shapes import Index, PerClass

# Elements in a chunk: its arrays stay in cache together.
ELEMENTS = 1 << 18
# Stopping criteria: largest gradient in preconditioned coordinates, and relative decrease of the
# loss. ROUGH for passes in float32, FINE for the final ones in float64. The gradient limit is that
# of FEW parameters; more of them need smaller gradients, because their errors add up.
ROUGH, FINE = (2e-4, 1e-7), (2e-4, 2e-8)
FEW = 10_000
# Up to this many scores steps are cheap, and the search runs until rounding ends it.
SMALL, EXACT = 1 << 18, (1e-10, 1e-14)
# With a gradient of at most this, a search that rounding ended has converged.
ENOUGH = 1e-4
STEPS = 500
# Parameters up to which their whole Hessian is computed.
DENSE = 600
# Examples used to estimate the Hessian.
SUBSAMPLE = 10_000
# Added to the Hessian so that directions without curvature are not scaled without limit.
FLOOR = 1e-6


@dataclass(frozen=True)
class Ridge:
    """Weights of the penalties on the bias, the diagonal and the off-diagonal part of D."""

    bias: float = 0.0
    diagonal: float = 0.0
    off_diagonal: float = 0.0


class Solution(NamedTuple):
    """The matrix (or its diagonal), the bias, and how the search ended."""

    weight: np.ndarray
    bias: PerClass
    converged: bool
    gradient_norm: float


class Data(NamedTuple):
    """Scores (n, k), labels, and positive weights that sum to one.

    Masked classes have scores of 0 and no probability.
    """

    scores: np.ndarray
    labels: Index
    weights: np.ndarray
    masked: np.ndarray | None = None

    def cast(self, dtype: type) -> "Data":
        """Return the same data in another precision."""
        scores: np.ndarray = self.scores.astype(dtype, copy=False)
        return self._replace(scores=scores, weights=self.weights.astype(dtype))

    def take(self, part: slice) -> "Data":
        """Return some of the examples, with their weights."""
        masked = None if self.masked is None else self.masked[part]
        return Data(self.scores[part], self.labels[part], self.weights[part], masked)

    def subsample(self) -> "Data":
        """Return about `SUBSAMPLE` evenly spaced examples, with weights that sum to one."""
        rows = self.take(slice(None, None, max(1, len(self.scores) // SUBSAMPLE)))
        return rows._replace(weights=rows.weights / rows.weights.sum())


Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


@one_thread_each()
def fit_diagonal(data: Data, ridge: Ridge) -> Solution:
    """Solve for one factor and one bias of each class."""
    k = data.scores.shape[1]
    penalty = np.repeat([ridge.diagonal, ridge.bias], k)
    sample = _hessian_sample(data.subsample())
    if 2 * k <= DENSE:
        to_change, to_gradient = _dense_preconditioner(_diagonal_hessian(sample), penalty)
    else:
        variance = sample.weights @ (sample.probs * (1 - sample.probs))
        squares = np.append(sample.mean_squares[:k], np.ones(k))
        scale = 1 / np.sqrt(np.tile(variance, 2) * squares + 2 * penalty + FLOOR)
        to_change, to_gradient = _scaled(scale)
    start = np.repeat([1.0, 0.0], k)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        change = to_change(flat)
        value, gradient = _diagonal_pass(data, *np.split(start + change, 2))
        value += float(np.einsum("i,i,i->", penalty, change, change))
        return value, to_gradient(gradient + 2 * penalty * change)

    found = _search(loss, np.zeros(2 * k), ends=_ends(data))
    weight, bias = np.split(start + to_change(found.x), 2)
    return _solution(weight, bias, found)


@one_thread_each()
def fit_full(data: Data, ridge: Ridge) -> Solution:
    """Solve for a matrix and a bias."""
    k = data.scores.shape[1]
    penalty = np.full((k + 1, k), ridge.off_diagonal)
    penalty[np.arange(k), np.arange(k)] = ridge.diagonal
    penalty[k] = ridge.bias
    sample = _hessian_sample(data.subsample())
    # The Hessian of an entry of the matrix is at most a quarter of the mean square of its score.
    dominated = 2 * ridge.off_diagonal > sample.mean_squares.max()
    if penalty.size <= DENSE:
        to_change, to_gradient = _dense_preconditioner(_full_hessian(sample), penalty)
    elif dominated:
        to_change, to_gradient = _diagonal_preconditioner(sample, penalty)
    else:
        to_change, to_gradient = _kronecker_preconditioner(sample, ridge.off_diagonal)
    identity = np.eye(k + 1, k)

    def loss_of(data: Data) -> Loss:
        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            change = to_change(flat.reshape(k + 1, k))
            value, gradient = _full_pass(data, identity + change)
            value += float(np.einsum("ij,ij,ij->", penalty, change, change))
            gradient += 2 * penalty * change
            return value, to_gradient(gradient).ravel()

        return loss

    start = np.zeros((k + 1) * k)
    if data.scores.size > SMALL:
        start = _search(loss_of(data.cast(np.float32)), start, ends=ROUGH).x
    found = _search(loss_of(data.cast(np.float64)), start, ends=_ends(data))
    affine = identity + to_change(found.x.reshape(k + 1, k))
    return _solution(affine[:k].T, affine[k], found)


def _solution(weight: np.ndarray, bias: PerClass, found: OptimizeResult) -> Solution:
    converged = bool(found.success or np.abs(found.jac).max() <= ENOUGH)
    return Solution(weight, bias, converged, float(np.linalg.norm(found.jac)))


def _ends(data: Data) -> tuple[float, float]:
    return EXACT if data.scores.size <= SMALL else FINE


def _search(loss: Loss, start: np.ndarray, *, ends: tuple[float, float]) -> OptimizeResult:
    gradient = ends[0] * min(1.0, (FEW / len(start)) ** 0.25)
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": gradient, "ftol": ends[1]}
    return minimize(loss, start, jac=True, method="L-BFGS-B", options=options)


def _diagonal_pass(data: Data, factor: PerClass, bias: PerClass) -> tuple[float, np.ndarray]:
    """Compute the loss and its gradient, (2k,): factors, then biases."""

    def of_chunk(part: slice) -> tuple[float, np.ndarray]:
        rows = data.take(part)
        scores = rows.scores.astype(np.float64, copy=False)
        value, error = _errors(scores * factor + bias, rows)
        return value, np.concatenate([np.einsum("nk,nk->k", error, scores), error.sum(0)])

    parts = list(map_chunks(of_chunk, torch.from_numpy(data.scores), elements=ELEMENTS))
    values, gradients = zip(*parts, strict=True)
    return float(sum(values)), np.sum(gradients, 0)


def _full_pass(data: Data, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute the loss and its gradient, (k + 1, k): the rows of the matrix, then the bias."""
    typed = weight.astype(data.scores.dtype)

    def of_chunk(part: slice) -> tuple[float, np.ndarray]:
        rows = data.take(part)
        value, error = _errors(rows.scores @ typed[:-1] + typed[-1], rows)
        return value, np.concatenate([rows.scores.T @ error, error.sum(0)[None]]).astype(np.float64)

    total, gradient = 0.0, np.zeros(weight.shape)
    for value, piece in map_chunks(of_chunk, torch.from_numpy(data.scores), elements=ELEMENTS):
        total += value
        gradient += piece
    return total, gradient


def _errors(logits: np.ndarray, rows: Data) -> tuple[float, np.ndarray]:
    """Compute the weighted loss and its gradient along the logits, which are overwritten."""
    at, labels, weights = np.arange(len(logits)), rows.labels, rows.weights
    if rows.masked is not None:
        logits[rows.masked] = -np.inf
    logits -= logits.max(1)[:, None]
    own = logits[at, labels]
    np.exp(logits, out=logits)
    total = np.einsum("nk->n", logits)
    value = float(np.einsum("n,n->", weights.astype(np.float64), np.log(total) - own))
    logits *= (weights / total)[:, None]
    logits[at, labels] -= weights
    return value, logits


class HessianSample(NamedTuple):
    """Scores with a column of ones, their mean squares, and probabilities of the examples.

    `uncertainty` weights each example by its Gini impurity: confident ones have no curvature.
    """

    scores: np.ndarray
    mean_squares: np.ndarray
    probs: np.ndarray
    weights: np.ndarray
    uncertainty: np.ndarray


# Maps coordinates of the search to a change of the matrix, and gradients to those coordinates.
Preconditioner = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


def _hessian_sample(data: Data) -> HessianSample:
    scores = data.scores.astype(np.float64)
    allowed = scores if data.masked is None else np.where(data.masked, -np.inf, scores)
    probs = np.exp(allowed - allowed.max(1)[:, None])
    probs /= probs.sum(1)[:, None]
    impurity = data.weights * (1 - np.einsum("nk,nk->n", probs, probs))
    with_one = np.concatenate([scores, np.ones((len(scores), 1))], 1)
    # The impurity of all examples can be 0.
    uncertainty = impurity / impurity.sum() if impurity.sum() > 0 else data.weights
    mean_squares = np.einsum("nk,nk,n->k", with_one, with_one, uncertainty)
    return HessianSample(with_one, mean_squares, probs, data.weights, uncertainty)


def _full_hessian(sample: HessianSample) -> np.ndarray:
    """Second derivatives along the entries of the matrix and the bias, ((k + 1) k, (k + 1) k)."""
    inputs, k = sample.scores.shape[1], sample.probs.shape[1]
    weighted = sample.scores * np.sqrt(sample.weights)[:, None]
    # How the log of the normalisation moves with each entry: input times probability.
    moves = (weighted[:, :, None] * sample.probs[:, None]).reshape(len(weighted), inputs * k)
    hessian = -(moves.T @ moves).reshape(inputs, k, inputs, k)
    own = moves.reshape(-1, inputs, k).transpose(2, 1, 0) @ weighted
    hessian[:, np.arange(k), :, np.arange(k)] += own
    return np.asarray(hessian.reshape(inputs * k, inputs * k))


def _diagonal_hessian(sample: HessianSample) -> np.ndarray:
    """Second derivatives along the factors and biases, (2k, 2k)."""
    k, root = sample.probs.shape[1], np.sqrt(sample.weights)[:, None]
    scores, weighted = sample.scores[:, :k], sample.probs * root
    moves = np.concatenate([weighted * scores, weighted], 1)
    hessian = -(moves.T @ moves)
    own = [np.einsum("nk,nk,n->k", sample.probs, scores**power, sample.weights) for power in (2, 1)]
    own.append(sample.weights @ sample.probs)
    at = np.arange(k)
    hessian[at, at] += own[0]
    hessian[at, at + k] += own[1]
    hessian[at + k, at] += own[1]
    hessian[at + k, at + k] += own[2]
    return np.asarray(hessian)


def _dense_preconditioner(hessian: np.ndarray, penalty: np.ndarray) -> Preconditioner:
    """Multiply by the inverse root of the Hessian at the start."""
    hessian[np.diag_indices(len(hessian))] += 2 * penalty.ravel() + FLOOR
    # With H = L L', coordinates u stand for the change inv(L') u.
    root = np.linalg.cholesky(hessian)

    def solved(values: np.ndarray, *, transposed: bool) -> np.ndarray:
        found = solve_triangular(root, values.ravel(), lower=True, trans=int(transposed))
        return np.asarray(found.reshape(values.shape))

    return partial(solved, transposed=True), partial(solved, transposed=False)


def _scaled(scale: np.ndarray) -> Preconditioner:
    """Multiply each entry by a number of its own."""
    return lambda entries: entries * scale, lambda gradient: gradient * scale


def _diagonal_preconditioner(sample: HessianSample, penalty: np.ndarray) -> Preconditioner:
    """Divide each entry by the root of its second derivative."""
    variance = sample.weights @ (sample.probs * (1 - sample.probs))
    return _scaled(1 / np.sqrt(np.outer(sample.mean_squares, variance) + 2 * penalty + FLOOR))


def _kronecker_preconditioner(sample: HessianSample, penalty: float) -> Preconditioner:
    """Rotate to the eigenvectors of both Kronecker factors and divide by the root of the Hessian.

    Rotations preserve the sum of squares, so a uniform penalty is just added.
    """
    inputs = (sample.scores * sample.uncertainty[:, None]).T @ sample.scores
    mean = sample.weights @ sample.probs
    outputs = np.diag(mean) - (sample.probs * sample.weights[:, None]).T @ sample.probs
    in_values, left = np.linalg.eigh(inputs)
    out_values, right = np.linalg.eigh(outputs)
    hessian = np.outer(np.maximum(in_values, 0), np.maximum(out_values, 0))
    scale = 1 / np.sqrt(hessian + 2 * penalty + FLOOR)
    return (
        lambda entries: np.asarray(left @ (entries * scale) @ right.T),
        lambda gradient: np.asarray((left.T @ gradient @ right) * scale),
    )
