"""The interface of training methods: loss of a batch, method state and its updates."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from calibrant.data import Batch, Scale, Splits
from calibrant.deprecated import Renamed
from calibrant.losses import cross_entropy
from calibrant.predictions import Predictions
from calibrant.shapes import flatten_dense


@runtime_checkable
class Ranks(Protocol):
    """The processes of a distributed training, as a method sees them."""

    rank: int

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate the tensors of all processes by rank; gradients flow back."""

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over the processes, without gradient."""


class SingleProcess:
    """`Ranks` of a run in one process."""

    rank = 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensor unchanged."""
        return tensor

    total = gather


class Method(ABC):
    """A training method: the loss of a batch, and method state (auxiliary parameters).

    Attributes:
        description: name and settings, which identify the method of a run; set by `build`.
        per_example: whether the loss of a batch is a mean of losses of its examples.
        needs_meta: whether part of the training data is held out for `before_step`.
        state_names: attributes that are the method state.
        meta_batch: held-out examples per step; 0 is the size of the training batch.
        meta_every: steps between two calls of `before_step`.
        meta_start: epochs before the first call.
        ignore_index: label of ignored pixels; set by `prepare`.
        scale: normalisation of stored images, None if unknown; set by `prepare`.
        counts: training examples (or pixels) of each class, (k,); set by `prepare`.
        adjust: strength of logit adjustment for long-tailed data: this multiple of the log class
            frequency is added to the logits in training only; set by `build`.
        ranks: the processes of the run; set by `prepare`.
    """

    rows = Renamed()
    adjusted = Renamed()
    readjusted = Renamed()

    per_example: ClassVar[bool] = False
    needs_meta: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ()
    meta_batch: int = 0
    meta_every: int = 1
    meta_start: int = 0
    description: str = ""
    ignore_index: int | None = None
    scale: Scale | None = None
    counts: Tensor | None = None
    adjust: float = 0.0
    ranks: Ranks = SingleProcess()

    def prepare(self, splits: Splits, ranks: Ranks) -> None:
        """Store facts about the data and the processes, before the first step."""
        self.ignore_index, self.scale, self.ranks = splits.ignore_index, splits.train.scale, ranks
        self.counts = splits.class_counts

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss to minimise, (n,) for each example or () for the whole batch."""

    def before_step(  # noqa: B027
        self, model: nn.Module, batch: Batch, meta: Batch, lr: float
    ) -> None:
        """Update method state on held-out training data, before the weights are updated."""

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Update method state on validation predictions; return values to log.

        Each value is a number, or a list with one number per class or bin.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Method state, as tensors and plain values."""
        return {name: getattr(self, name) for name in self.state_names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load state; the state of another method raises."""
        self.check_state(state)
        for name in self.state_names:
            value, own = state[name], getattr(self, name)
            tensors = isinstance(value, Tensor) and isinstance(own, Tensor)
            setattr(self, name, value.to(own.device) if tensors else value)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Require the keys of this method's state, and tensors of the same shapes."""
        own = self.state_dict()
        if set(state) != set(own):
            raise ValueError(
                f"not a state of {type(self).__name__}: expected the keys {sorted(own)}, "
                f"got {sorted(state)}"
            )
        for name, value in own.items():
            if isinstance(value, Tensor) and isinstance(state[name], Tensor):
                expected, shape = tuple(value.shape), tuple(state[name].shape)
                if shape != expected:
                    raise ValueError(f"{name} must have shape {expected}, got {shape}")

    def to(self, device: torch.device) -> None:
        """Move method state to the device of the network."""
        for name in self.state_names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))

    def flatten(
        self, logits: Tensor, labels: Tensor, *, adjusted: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Logits as (n, k) and labels as (n,): of images, or of valid (non-ignored) pixels.

        With `adjusted`, logit adjustment is applied; without, they are the logits of inference.
        """
        if not isinstance(logits, Tensor):
            raise TypeError(f"a network must return logits, a tensor; got {type(logits).__name__}")
        if logits.ndim == 2 and labels.ndim > 1:
            raise ValueError(
                f"labels are masks {tuple(labels.shape)}, but the network returns logits for whole "
                f"images {tuple(logits.shape)}; choose a network for masks, such as unet"
            )
        if logits.ndim != 2:
            logits, labels, _ = flatten_dense(logits, labels, ignore_index=self.ignore_index)
        return (self.adjust_logits(logits) if adjusted else logits), labels

    def adjust_logits(self, logits: Tensor) -> Tensor:
        """Logits (n, k) plus `adjust` times the centred logarithm of the class frequencies."""
        if not self.adjust:
            return logits
        if self.counts is None:
            raise ValueError("adjust needs the counts of each class: call prepare, or set counts")
        if tuple(self.counts.shape) != (logits.shape[1],):
            raise ValueError(
                f"counts must have one number for each of {logits.shape[1]} classes, "
                f"got shape {tuple(self.counts.shape)}"
            )
        log_counts = self.counts.to(logits).clamp(min=1).log()
        return logits + self.adjust * (log_counts - log_counts.mean())

    def with_adjusted_cross_entropy(self, loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Replace the cross entropy in a loss by that of the adjusted logits.

        For losses whose other terms depend on the logits of inference.
        """
        if not self.adjust:
            return loss
        change = cross_entropy(self.adjust_logits(logits), labels) - cross_entropy(logits, labels)
        return loss + change


class PerExampleMethod(Method):
    """A method whose loss depends on the logits and the label of each example alone."""

    per_example: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, (n,)."""
        logits, labels = self.flatten(model(batch.inputs), batch.labels, adjusted=False)
        return mixup_loss(self.example_loss, batch, logits, labels)

    @abstractmethod
    def example_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss (n,) of logits (n, k), which are those of inference."""


def mixup_loss(
    loss: Callable[[Tensor, Tensor], Tensor], batch: Batch, logits: Tensor, labels: Tensor
) -> Tensor:
    """Loss of each example; with mixup, the weighted mean over both labels."""
    if batch.other_labels is None or batch.share is None:
        return loss(logits, labels)
    share = batch.share.to(logits.dtype)
    return share * loss(logits, labels) + (1 - share) * loss(logits, batch.other_labels)


def dominant_labels(batch: Batch) -> Tensor:
    """One label per example; with mixup, the one of the larger weight."""
    if batch.other_labels is None or batch.share is None:
        return batch.labels
    return torch.where(batch.share >= 0.5, batch.labels, batch.other_labels)


def check_classes(what: str, given: int, classes: int) -> None:
    """Require the number of classes that the method was made for."""
    if given != classes:
        raise ValueError(f"{what} must have the {classes} classes of the method, got {given}")
