"""Hessian and Gauss-Newton matrices of a loss over a dataset, as matrix-vector products."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from calibrant.curvature.batches import Data
from calibrant.curvature.graphs import MATRICES, Product, measurement_mode
from calibrant.curvature.problem import Loss, Problem, make_problem
from calibrant.curvature.weights import Vector, accumulate, flat
from calibrant.losses.settings import at_least, one_of

Matrix: TypeAlias = Literal["hessian", "gauss_newton"]

# Bytes of autograd graphs kept between products.
KEEP = 2 << 30


class OperatorOptions(TypedDict, total=False):
    """Keyword arguments of `operator`, which functions of a matrix pass on."""

    matrix: Matrix
    parameters: Sequence[str] | None
    ignore_index: int | None
    keep: int


@dataclass(frozen=True, eq=False, repr=False)
class Operator:
    """A symmetric matrix given by matrix-vector products; made by `operator`.

    Attributes:
        problem: the loss function, at a copy of the weights.
        matrix: which second derivative.
        kept: products of the chunks of the dataset, each with its number of valid labels; None if
            their graphs are rebuilt for each product.
    """

    problem: Problem
    matrix: Matrix
    kept: tuple[tuple[int, Product], ...] | None = None

    @property
    def size(self) -> int:
        """Number of rows, and of columns."""
        return self.problem.weights.size

    def product(self, vector: Vector) -> Vector:
        """The matrix times a vector, (size,) in float64."""
        vectors = self.problem.weights.split(vector)
        sums = self.problem.weights.zeros()
        labels = 0
        twice = self.matrix == "hessian"
        with nullcontext() if self.kept else measurement_mode(self.problem.model, twice=twice):
            for count, product in self.kept or self._products():
                accumulate(sums, product(vectors))
                labels += count
        found = flat(sums) / labels
        if not found.isfinite().all():
            raise FloatingPointError(
                f"a product with the {self.matrix} matrix is not finite: check that weights and "
                "inputs are finite and the loss is twice differentiable there"
            )
        return found

    def _products(self) -> Iterator[tuple[int, Product]]:
        for chunk in self.problem.chunks():
            yield len(chunk.labels), self.problem.product(MATRICES[self.matrix], chunk)

    def dense(self) -> Float64[Tensor, "d d"]:
        """The dense matrix, for small networks."""
        basis = torch.eye(self.size, dtype=torch.float64)
        matrix = torch.stack([self.product(unit) for unit in basis])
        return (matrix + matrix.T) / 2


def operator(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    matrix: Matrix = "hessian",
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
    keep: int = KEEP,
) -> Operator:
    r"""Second derivatives of the mean loss over a dataset, in the weights of a model.

    $$H = \nabla^2 \frac1n \sum_i \ell(z(x_i), y_i), \qquad
      G = \frac1n \sum_i J_i^T\, \nabla_z^2 \ell(z_i, y_i)\, J_i, \qquad J_i = \nabla z(x_i)$$

    G has no negative eigenvalue where the loss is convex in the logits, as cross entropy is, and
    equals H where the logits are linear in the weights.

    The model is used in evaluation mode: batch norm is a fixed map, dropout is off. It is not
    changed, and the matrix stays that of the weights at the time of this call. Only reverse mode
    is used, so operations need no forward-mode derivative; they must be twice differentiable, and
    examples must not depend on each other. Batches are computed in the dtype of the weights, sums
    over batches in float64.

    Args:
        model: returns logits (n, k) or (n, k, h, w), or an object with an attribute `.logits`.
        loss: loss of logits (m, k) and labels (m,): one value per example, or their mean. A mean is
            computed on whole batches, which takes more memory; a batch statistic, such as MMCE, is
            averaged over the batches of `data`, by size.
        data: a pair (inputs, labels), or batches of such pairs that can be iterated repeatedly.
            The model is called with `**inputs` if these are a mapping.
        matrix: "hessian" or "gauss_newton".
        parameters: names of parameters, or of modules, to differentiate in; None is every
            parameter that requires a gradient.
        ignore_index: label of ignored examples or pixels.
        keep: bytes of graphs to keep between products. If they do not fit, they are rebuilt for
            each product, which takes about half as long again.

    Examples:
        >>> from calibrant.losses import cross_entropy
        >>> data = torch.randn(8, 2), torch.arange(8) % 3
        >>> curvature = operator(nn.Linear(2, 3), cross_entropy, data)
        >>> curvature.size
        9
        >>> curvature.product(torch.ones(9, dtype=torch.float64)).shape
        torch.Size([9])
    """
    one_of("matrix", matrix, MATRICES)
    at_least("keep", 0, keep)
    problem = make_problem(model, loss, data, parameters=parameters, ignore_index=ignore_index)
    kept: list[tuple[int, Product]] = []
    used = 0.0
    with measurement_mode(problem.model, twice=matrix == "hessian"):
        for chunk in problem.chunks():
            used += chunk.examples * problem.memory
            if used > keep:
                return Operator(problem, matrix)
            kept.append((len(chunk.labels), problem.product(MATRICES[matrix], chunk)))
    return Operator(problem, matrix, tuple(kept))


def gradient(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
) -> Vector:
    """Gradient of the mean loss over a dataset, flat and in float64; arguments as of `operator`."""
    problem = make_problem(model, loss, data, parameters=parameters, ignore_index=ignore_index)
    return problem.value_and_gradient()[1]
