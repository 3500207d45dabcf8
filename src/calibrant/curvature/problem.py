"""The mean of a loss over a dataset, as a function of a model's weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from calibrant.curvature.batches import Data, Inputs, answers, pairs, placed, rows, taken
from calibrant.curvature.graphs import Product, check_twice, hessian, measuring, saved_bytes
from calibrant.curvature.layers import mixes_examples
from calibrant.curvature.weights import Vector, Weights, added, copied, flat
from calibrant.model_modes import bare
from calibrant.shapes import Labels, Logits, Scalar, shape

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# Of the sum of the losses in the logits, the logits and the weights: products with a matrix.
Build: TypeAlias = Callable[[Callable[[Logits], Scalar], Logits, Sequence[Tensor]], Product]

# Bytes of the graph of one piece: small enough for a processor's cache, large enough for its cores.
PIECE = 64 << 20
# Examples that are tried to find out how many bytes one takes.
TRIED = 4


@dataclass(frozen=True, eq=False, repr=False)
class Piece:
    """Some examples of a batch: logits (m, k), with their graph, and labels (m,) that count."""

    logits: Logits
    labels: Labels
    examples: int


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """The mean of a loss over a dataset, as a function of a model's weights.

    Attributes:
        model: called inside `measuring`.
        loss: of logits (m, k) and labels (m,), per example or a mean over them.
        data: batches, each weighted by the number of its labels that count.
        weights: where the loss is taken, and in what it is differentiated.
        ignore_index: label of examples or pixels that do not count.
        exact: whether the loss takes logits in float64: in float32 the curvature of sure answers,
            p (1 - p), would cancel.
        memory: bytes of the graph of one example, about.
        step: examples of a piece; None is a whole batch.
    """

    model: nn.Module
    loss: Loss
    data: Data
    weights: Weights
    ignore_index: int | None
    exact: bool = True
    memory: float = 0.0
    step: int | None = None

    def pieces(self) -> Iterator[Piece]:
        """Everything that counts, a piece at a time."""
        found = False
        for inputs, labels in pairs(self.data):
            step = self.step or len(labels)
            for start in range(0, len(labels), step):
                part = slice(start, start + step)
                examples = labels[part].to(self.weights.device)
                logits = self.logits(taken(inputs, part))
                logits, counted = rows(logits, examples, ignore_index=self.ignore_index)
                if len(counted):
                    found = True
                    yield Piece(self.raised(logits), counted, len(examples))
        if not found:
            raise ValueError(f"no label counts: all are ignore_index, {self.ignore_index}")

    def logits(self, inputs: Inputs) -> Float[Tensor, "n k ..."]:
        """What the model says."""
        like = self.weights.tensors[0]
        return answers(self.model, self.weights.state, placed(inputs, like))

    def raised(self, logits: Logits) -> Logits:
        """Logits in the precision of the loss."""
        return logits.double() if self.exact else logits

    def total(self, labels: Labels) -> Callable[[Logits], Scalar]:
        """The sum of the losses as a function of the logits."""

        def total(logits: Logits) -> Scalar:
            losses = self.loss(logits, labels)
            if not isinstance(losses, Tensor) or losses.shape not in ((), labels.shape):
                got = shape(losses) if isinstance(losses, Tensor) else type(losses).__name__
                raise ValueError(
                    "the loss must give a tensor with a number for each example, or their mean; "
                    f"of {len(labels)} examples it gave {got}"
                )
            return losses.sum() if losses.ndim else losses * len(labels)

        return total

    def product(self, build: Build, piece: Piece) -> Product:
        """Products with a second derivative of the sum over a piece."""
        return build(self.total(piece.labels), piece.logits, self.weights.tensors)

    def products(self, build: Build) -> Iterator[tuple[int, Product]]:
        """The same for each piece, with the number of its labels that count."""
        for piece in self.pieces():
            yield len(piece.labels), self.product(build, piece)

    def value_and_gradient(self) -> tuple[float, Vector]:
        """The mean loss and its gradient."""
        value, labels, slopes = 0.0, 0, self.weights.zeros()
        with measuring(self.model):
            for piece in self.pieces():
                total = self.total(piece.labels)(piece.logits)
                value += float(total.detach())
                labels += len(piece.labels)
                if total.requires_grad:
                    tensors = self.weights.tensors
                    added(slopes, torch.autograd.grad(total, tensors, materialize_grads=True))
        gradient = flat(slopes) / labels
        if not gradient.isfinite().all():
            raise FloatingPointError("the gradient is not finite: are the weights and the loss?")
        return value / labels, gradient

    def moved(self, vector: Vector) -> "Problem":
        """The same at other weights, a flat vector away."""
        return replace(self, weights=self.weights.moved(vector))


def posed(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None,
    ignore_index: int | None,
) -> Problem:
    """Copy the weights and choose the pieces; arguments as of `operator`."""
    network = bare(model)
    problem = Problem(network, loss, data, copied(network, parameters), ignore_index)
    with measuring(network):
        inputs, labels = next(pairs(data))
        first = taken(inputs, slice(TRIED)), labels[:TRIED]
        try:
            memory, splits = _tried(problem, *first)
        except RuntimeError:
            # A loss may hold tensors of its own that do not go with float64.
            problem = replace(problem, exact=False)
            memory, splits = _tried(problem, *first)
    if not splits or mixes_examples(network):
        return replace(problem, memory=memory)
    return replace(problem, memory=memory, step=max(1, int(PIECE / memory)))


def _tried(problem: Problem, inputs: Inputs, labels: Int[Tensor, "n ..."]) -> tuple[float, bool]:
    """Bytes that an example takes, and whether the loss is one number for each."""
    # Class 0, because these examples may not count.
    labels = torch.zeros_like(labels, device=problem.weights.device)
    single: list[bool] = []

    def started() -> tuple[Callable[[Logits], Scalar], Logits]:
        logits, classes = rows(problem.logits(inputs), labels, ignore_index=None)
        logits, total = problem.raised(logits), problem.total(classes)
        single.append(problem.loss(logits, classes).ndim == 1)
        return total, logits

    def graph() -> Product:
        return hessian(*started(), problem.weights.tensors)

    total, logits = started()
    check_twice(total(logits), problem.weights.tensors)
    taken_bytes = saved_bytes(graph, besides=problem.weights.state.values())
    return max(1.0, taken_bytes / len(labels)), single[0]
