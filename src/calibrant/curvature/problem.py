"""The mean loss over a dataset as a function of a model's weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor, nn

from calibrant.curvature.batches import (
    Data,
    Inputs,
    flatten_valid,
    model_logits,
    move_inputs,
    read_batches,
    take,
)
from calibrant.curvature.graphs import (
    Product,
    check_twice_differentiable,
    hessian,
    measurement_mode,
    saved_bytes,
)
from calibrant.curvature.layers import mixes_examples
from calibrant.curvature.weights import Vector, Weights, accumulate, copy_weights, flat
from calibrant.model_modes import bare
from calibrant.shapes import Labels, Logits, Scalar, shape

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# From the total loss as a function of logits, the logits and the weights to matrix products.
Build: TypeAlias = Callable[[Callable[[Logits], Scalar], Logits, Sequence[Tensor]], Product]

# Bytes of the graph of one chunk: small enough for the cache, large enough for all cores.
CHUNK_BYTES = 64 << 20
# Examples used to measure the memory of one.
MEASURED = 4


@dataclass(frozen=True, eq=False, repr=False)
class Chunk:
    """Some examples of a batch: logits (m, k) with their graph, and valid labels (m,)."""

    logits: Logits
    labels: Labels
    examples: int


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """The mean loss over a dataset as a function of a model's weights.

    Attributes:
        model: called inside `measurement_mode`.
        loss: loss of logits (m, k) and labels (m,), per example or their mean.
        data: batches, each weighted by its number of valid labels.
        weights: the point at which the loss is differentiated.
        ignore_index: label of ignored examples or pixels.
        exact: whether the loss is computed in float64: in float32 the curvature p (1 - p) of
            confident predictions would cancel.
        memory: approximate bytes of the graph of one example.
        step: examples of a chunk; None is a whole batch.
    """

    model: nn.Module
    loss: Loss
    data: Data
    weights: Weights
    ignore_index: int | None
    exact: bool = True
    memory: float = 0.0
    step: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        """All valid examples, a chunk at a time."""
        found = False
        for inputs, labels in read_batches(self.data):
            step = self.step or len(labels)
            for start in range(0, len(labels), step):
                part = slice(start, start + step)
                given = take(inputs, part), labels[part]
                logits, valid = self.forward(*given, ignore_index=self.ignore_index)
                if len(valid):
                    found = True
                    yield Chunk(logits, valid, len(given[1]))
        if not found:
            raise ValueError(f"all labels are ignore_index, {self.ignore_index}")

    def forward(
        self, inputs: Inputs, labels: Int[Tensor, "b ..."], *, ignore_index: int | None
    ) -> tuple[Logits, Labels]:
        """Logits (m, k) in the dtype of the loss, and valid labels (m,)."""
        like = self.weights.tensors[0]
        logits = model_logits(self.model, self.weights.state, move_inputs(inputs, like))
        flat, valid = flatten_valid(logits, labels.to(like.device), ignore_index=ignore_index)
        return flat.double() if self.exact else flat, valid

    def total(self, labels: Labels) -> Callable[[Logits], Scalar]:
        """The sum of the losses as a function of the logits."""

        def total(logits: Logits) -> Scalar:
            losses = self.loss(logits, labels)
            if not isinstance(losses, Tensor) or losses.shape not in ((), labels.shape):
                got = shape(losses) if isinstance(losses, Tensor) else type(losses).__name__
                raise ValueError(
                    "the loss must return a tensor with one value per example, or their mean; "
                    f"for {len(labels)} examples got {got}"
                )
            return losses.sum() if losses.ndim else losses * len(labels)

        return total

    def product(self, build: Build, chunk: Chunk) -> Product:
        """Products with a second derivative of the sum over a chunk."""
        return build(self.total(chunk.labels), chunk.logits, self.weights.tensors)

    def value_and_gradient(self) -> tuple[float, Vector]:
        """The mean loss and its gradient."""
        value, labels, sums = 0.0, 0, self.weights.zeros()
        with measurement_mode(self.model):
            for chunk in self.chunks():
                total = self.total(chunk.labels)(chunk.logits)
                value += float(total.detach())
                labels += len(chunk.labels)
                if total.requires_grad:
                    tensors = self.weights.tensors
                    accumulate(sums, torch.autograd.grad(total, tensors, materialize_grads=True))
        gradient = flat(sums) / labels
        if not gradient.isfinite().all():
            raise FloatingPointError("the gradient is not finite: check the weights and the loss")
        return value / labels, gradient

    def moved(self, vector: Vector) -> "Problem":
        """The same loss at the weights plus a flat vector."""
        return replace(self, weights=self.weights.moved(vector))


def make_problem(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None,
    ignore_index: int | None,
) -> Problem:
    """Copy the weights and choose the chunk size; arguments of `operator`."""
    network = bare(model)
    problem = Problem(network, loss, data, copy_weights(network, parameters), ignore_index)
    with measurement_mode(network):
        inputs, labels = next(read_batches(data))
        first = take(inputs, slice(MEASURED)), labels[:MEASURED]
        try:
            memory, splits = _measure_memory(problem, *first)
        except RuntimeError:
            # The loss may use tensors of its own that are incompatible with float64.
            problem = replace(problem, exact=False)
            memory, splits = _measure_memory(problem, *first)
    if not splits or mixes_examples(network):
        return replace(problem, memory=memory)
    return replace(problem, memory=memory, step=max(1, int(CHUNK_BYTES / memory)))


def _measure_memory(
    problem: Problem, inputs: Inputs, labels: Int[Tensor, "n ..."]
) -> tuple[float, bool]:
    """Bytes of the graph of one example, and whether the loss has one value per example."""
    # Class 0, because these examples may be ignored ones.
    labels, weights = torch.zeros_like(labels), problem.weights

    def forward() -> tuple[Callable[[Logits], Scalar], Logits, Labels]:
        logits, classes = problem.forward(inputs, labels, ignore_index=None)
        return problem.total(classes), logits, classes

    def graph() -> Product:
        return hessian(*forward()[:2], weights.tensors)

    total, logits, classes = forward()
    check_twice_differentiable(total(logits), weights.tensors)
    graph_bytes = saved_bytes(graph, besides=weights.state.values())
    return max(1.0, graph_bytes / len(labels)), problem.loss(logits, classes).ndim == 1
