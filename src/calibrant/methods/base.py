"""What a training method may decide; the loop does everything else."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.predictions import Predictions
from calibrant.shapes import flatten_dense


class Ranks(Protocol):
    """What a method may ask of the processes that train together."""

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, in the order of their ranks; gradients flow back."""

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over the processes; no gradient."""


class Alone:
    """One process: everything is here already."""

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
        ignore_index: the label of pixels that do not count; set by whoever trains.
        ranks: the processes that train together; set by whoever trains.
    """

    per_example: ClassVar[bool] = False
    needs_meta: ClassVar[bool] = False
    description: str = ""
    ignore_index: int | None = None
    ranks: Ranks = Alone()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss to minimise, (n,) for each example or () for the whole batch."""

    def before_step(  # noqa: B027
        self, model: nn.Module, batch: Batch, meta: Batch, lr: float
    ) -> None:
        """Learn from held-out training data before the weights move."""

    def after_epoch(self, val: Predictions) -> Mapping[str, float]:
        """Move multipliers and the like by what validation says; return what is worth logging."""
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

    def rows(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits as (n, k) and their labels: of images, or of the pixels that count."""
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
