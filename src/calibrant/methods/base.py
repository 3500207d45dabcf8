"""What a training method may decide; the loop does everything else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from calibrant.data import Batch, Scale, Splits
from calibrant.losses import cross_entropy
from calibrant.predictions import Predictions
from calibrant.shapes import flatten_dense


@runtime_checkable
class Ranks(Protocol):
    """What a method may ask of the processes that train together."""

    rank: int

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, in the order of their ranks; gradients flow back."""

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over the processes; no gradient."""


class Alone:
    """One process: everything is here already."""

    rank = 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows as they are."""
        return tensor

    def total(self, tensor: Tensor) -> Tensor:
        """Return the tensor as it is."""
        return tensor


class Method(ABC):
    """How a batch becomes a loss, and what is learnt beside the weights.

    Attributes:
        description: name and settings, by which two runs are told apart; `build` fills it in.
        per_example: whether the loss of a batch is the mean of losses of its examples.
        needs_meta: whether a part of the training data is set aside for `before_step`.
        meta_batch: examples of that part that a step sees; 0 is as many as of the training data.
        meta_every: steps from one call of `before_step` to the next.
        meta_start: epochs before the first of them.
        ignore_index: the label of pixels that do not count; set by `prepare`.
        scale: how stored images became inputs; None if they did not; set by `prepare`.
        counts: examples (or pixels) of each class in the training data, (k,); set by `prepare`.
        adjust: times the logarithm of each class's share, added to the logits in training only, so
            that rare classes are not held down by their rarity; `build` sets it.
        ranks: the processes that train together; set by `prepare`.
    """

    per_example: ClassVar[bool] = False
    needs_meta: ClassVar[bool] = False
    meta_batch: int = 0
    meta_every: int = 1
    meta_start: int = 0
    description: str = ""
    ignore_index: int | None = None
    scale: Scale | None = None
    counts: Tensor | None = None
    adjust: float = 0.0
    ranks: Ranks = Alone()

    def prepare(self, splits: Splits, ranks: Ranks) -> None:
        """Learn what there is to know about the data and the processes, before the first step."""
        self.ignore_index, self.scale, self.ranks = splits.ignore_index, splits.train.scale, ranks
        self.counts = splits.class_counts

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss to minimise, (n,) for each example or () for the whole batch."""

    def before_step(  # noqa: B027
        self, model: nn.Module, batch: Batch, meta: Batch, lr: float
    ) -> None:
        """Learn from held-out training data before the weights move."""

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Move multipliers and the like by what validation says; return what is worth logging.

        A number each, or a list with one for each class or bin.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt so far, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one of another method is refused."""
        if state:
            raise ValueError(
                f"{type(self).__name__} learns nothing, but the state holds {sorted(state)}"
            )

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Move what is learnt to where the network is."""

    def rows(
        self, logits: Tensor, labels: Tensor, *, adjusted: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Logits as (n, k) and their labels: of images, or of the pixels that count.

        Args:
            logits: what the network says.
            labels: of the batch.
            adjusted: add what `adjust` asks for; without it, the logits are those of inference.
        """
        flat, flat_labels = self._flat(logits, labels)
        return (self.adjusted(flat) if adjusted else flat), flat_labels

    def adjusted(self, logits: Tensor) -> Tensor:
        """Logits (n, k) plus `adjust` times the logarithm of the share of each class.

        Less the mean of these logarithms: equal classes change nothing at all.
        """
        if not self.adjust:
            return logits
        if self.counts is None:
            raise ValueError("adjust needs the counts of each class: call prepare, or set counts")
        if tuple(self.counts.shape) != (logits.shape[1],):
            raise ValueError(
                f"counts must be one number for each of {logits.shape[1]} classes, "
                f"got shape {tuple(self.counts.shape)}"
            )
        shares = self.counts.to(logits).clamp(min=1).log()
        return logits + self.adjust * (shares - shares.mean())

    def readjusted(self, loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Replace the cross entropy within a loss of the logits (n, k) by that of adjusted ones.

        For methods whose other terms are about the logits of inference.
        """
        if not self.adjust:
            return loss
        instead = cross_entropy(self.adjusted(logits), labels) - cross_entropy(logits, labels)
        return loss + instead

    def _flat(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(logits, Tensor):
            raise TypeError(f"a network must return logits, a tensor; got {type(logits).__name__}")
        if logits.ndim == 2 and labels.ndim == 1:
            return logits, labels
        if logits.ndim == 2:
            raise ValueError(
                f"labels are masks {tuple(labels.shape)}, the network answers for whole images "
                f"{tuple(logits.shape)}; choose one for masks, such as unet"
            )
        flat, flat_labels, _ = flatten_dense(logits, labels, ignore_index=self.ignore_index)
        return flat, flat_labels


def mixed(
    loss: Callable[[Tensor, Tensor], Tensor], batch: Batch, logits: Tensor, labels: Tensor
) -> Tensor:
    """Loss of each example; of two mixed images, the mean of both by their shares."""
    if batch.other_labels is None or batch.share is None:
        return loss(logits, labels)
    share = batch.share.to(logits.dtype)
    return share * loss(logits, labels) + (1 - share) * loss(logits, batch.other_labels)


def larger_part(batch: Batch) -> Tensor:
    """One label for each example: of two mixed images, that of the larger part."""
    if batch.other_labels is None or batch.share is None:
        return batch.labels
    return torch.where(batch.share >= 0.5, batch.labels, batch.other_labels)


def same_answers(logits: Tensor, classes: int) -> None:
    """Refuse a network of other classes than the method was made for."""
    if logits.shape[1] != classes:
        raise ValueError(
            f"the network answers for {logits.shape[1]} classes, the method was made for {classes}"
        )


def same_classes(val: Predictions, classes: int) -> None:
    """Refuse predictions of other classes than the method was made for."""
    if val.classes != classes:
        raise ValueError(
            f"predictions must be of {classes} classes, as the method is; got {val.classes}"
        )
