"""Losses and methods as the `compute_loss_func` of a Trainer."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.integrations.transformers.batches import (
    IGNORED,
    check_labels,
    labelled_rows,
    logits_of,
)
from calibrant.methods import Method, WithTerm, build
from calibrant.methods.base import PerExampleMethod
from calibrant.methods.meta_learning import MetaLearner
from calibrant.shapes import PerExample, Scalar

LossFunction = Callable[..., Scalar]
# Methods whose loss needs nothing but logits and labels.
OF_LOGITS = (PerExampleMethod, WithTerm)


def compute_loss(
    name: str,
    *,
    counts: Sequence[int] | None = None,
    ignore_index: int = IGNORED,
    **settings: Any,
) -> LossFunction:
    """Make the `compute_loss_func` of a Trainer from a loss, or a method without state.

    With gradient accumulation the loss is the sum over a batch divided by the number of labels in
    all batches of the step, so two batches of 8 have the gradient of one of 16. A batch statistic
    (`mmce`, `sece`, ...) is that of each batch, weighted by its share of the labels: not that of
    all batches together.

    Args:
        name: one of `calibrant.methods.METHODS`, which contains every loss.
        counts: training examples of each class, for `adjust`, `logit_adjustment` and
            `balanced_softmax`.
        ignore_index: label of positions without one.
        settings: of the loss or method.

    Examples:
        >>> loss = compute_loss("focal", gamma=3.0)
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(float(loss({"logits": logits}, torch.tensor([0, 0]))), 4)
        0.2567
    """

    @cache
    def method_of(classes: int) -> Method:
        method = checked_method(name, classes, counts, settings)
        if not isinstance(method, OF_LOGITS) or _changes(method):
            raise ValueError(f"{name} learns during training: use MethodCallback({name!r})")
        return method

    # Wrong names and settings raise here. The classes are known with the first batch; until then
    # three, the fewest that every loss is defined for.
    method_of(3 if counts is None else len(counts))

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Scalar:
        logits = logits_of(outputs)
        check_labels(logits, labels)
        losses = of_logits(method_of(logits.shape[-1]), logits, labels, ignore_index=ignore_index)
        return mean_over(losses, num_items_in_batch)

    return loss


def checked_method(
    name: str, classes: int, counts: Sequence[int] | None, settings: dict[str, Any]
) -> Method:
    """A method that needs no more than a Trainer tells it."""
    method = build(name, classes=classes, **settings)
    if not isinstance(method, (*OF_LOGITS, MetaLearner)):
        raise ValueError(
            f"{name} runs the network on inputs of its own, which a Trainer cannot do; "
            "use it in your own loop, or choose another method"
        )
    if method.adjust and counts is None:
        raise ValueError(f"{name} needs counts, the number of training examples of each class")
    if counts is not None:
        method.counts = torch.tensor(counts)
    return method


def of_logits(
    method: Method, logits: Float[Tensor, "..."], labels: Int[Tensor, "..."], *, ignore_index: int
) -> PerExample:
    """Loss of each valid example or token: that of a network whose inputs are the logits."""
    if logits.ndim == 3:
        # As images: a method may compare neighbours, or average over documents.
        logits = logits.movedim(-1, 1)
    else:
        logits, labels = labelled_rows(logits, labels, ignore_index=ignore_index)
    method.ignore_index = ignore_index
    method.to(logits.device)
    return method.loss(nn.Identity(), Batch.of(logits, labels))


def mean_over(losses: PerExample, items: Tensor | int | None) -> Scalar:
    """Sum of the losses over the labels of a step, or of this batch if they are not known."""
    return losses.sum() / torch.as_tensor(len(losses) if items is None else items).clamp(min=1)


def _changes(method: Method) -> bool:
    """Whether a method has state, other than that of a constant schedule."""
    return bool(method.state_dict()) and getattr(method, "schedule", "") != "constant"
