"""Train with any method in a Lightning trainer: everything about it but the loss."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from calibrant.data import Batch, Scale
from calibrant.integrations.lightning.validation import (
    Read,
    ValidationCallback,
    ranks_of,
    read_outputs,
)
from calibrant.methods import Method
from calibrant.methods.heads import find_head
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.training.held_out import HeldOut


def read_batch(batch: Any) -> Batch:
    """A `Batch` of a pair of inputs and labels."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise TypeError(
            f"a batch must be a pair of inputs and labels, got {type(batch).__name__}; or pass "
            "read_batch=lambda batch: Batch.of(inputs, labels)"
        )
    return Batch.of(*batch)


class MethodCallback(ValidationCallback):
    """Drives a method whose `loss(self, Batch.of(inputs, labels))` is minimised in `training_step`.

    It calls `before_step` and, after every validation, `after_epoch`; what that returns is logged
    by the module. Method state follows the device and is in every checkpoint.

    Args:
        method: from `methods.build`, or your own.
        held_out: data that the method learns on and the network does not, for methods that need
            it: a dataset, from which `method.meta_batch` examples are taken each time, or a loader
            with the batch size of each process. Their order is random and follows from `seed`.
        counts: training examples of each class, for methods with `adjust`.
        scale: normalisation of stored images, for `calmo`.
        ignore_index: label of ignored pixels.
        seed: of the order of held-out data.
        read: gives logits and labels from what `validation_step` returned and its batch.
        read_batch: makes a `Batch` of what a loader gives.
    """

    def __init__(
        self,
        method: Method,
        *,
        held_out: Dataset[Any] | DataLoader[Any] | None = None,
        counts: Tensor | None = None,
        scale: Scale | None = None,
        ignore_index: int | None = None,
        seed: int = 0,
        read: Read = read_outputs,
        read_batch: Callable[[Any], Batch] = read_batch,
    ) -> None:
        super().__init__(read, ignore_index)
        if method.needs_meta != (held_out is not None):
            raise ValueError(
                "this method learns on held-out data: pass held_out=..., none of it training data"
                if method.needs_meta
                else "this method learns nothing on held-out data: leave out held_out"
            )
        self.method, self.read_batch = method, read_batch
        given = {"counts": counts, "scale": scale, "ignore_index": ignore_index}
        for name, value in given.items():
            if value is not None:
                setattr(method, name, value)
        self.held_out = None if held_out is None else HeldOut(held_out, seed=seed)
        # Training batches so far.
        self.batches = 0

    def wants_predictions(self, trainer: Any) -> bool:
        """Validations of a training, if the method learns from them."""
        return trainer.state.fn == "fit" and _learns_after_epoch(self.method)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell the method about processes and device."""
        if _learns_after_epoch(self.method) and not trainer.enable_validation:
            raise ValueError(
                "this method learns from validation predictions: pass a validation loader to fit"
            )
        if self.method.needs_meta and 0 < (trainer.max_epochs or 0) <= self.method.meta_start:
            raise ValueError(
                f"the method would start to learn after {self.method.meta_start} epochs, the run "
                f"has {trainer.max_epochs}: lower start, or train longer"
            )
        self.method.ranks = ranks_of(trainer, pl_module)
        self.method.to(pl_module.device)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Say that a resumed training starts the method anew."""
        if trainer.state.fn == "fit" and self.state_key not in checkpoint["callbacks"]:
            warn("the checkpoint has no state of this MethodCallback: the method starts anew")

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give the method held-out data if it is time."""
        method, held_out = self.method, self.held_out
        position, rest = divmod(self.batches, method.meta_every)
        self.batches += 1
        if held_out is None or rest or trainer.current_epoch < method.meta_start:
            return
        own = self.read_batch(batch)
        size = method.meta_batch or len(own) * trainer.world_size
        found = held_out.batch(position, size, method.ranks.rank, trainer.world_size)
        found = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(found))
        lr = learning_rate(trainer.optimizers, pl_module)
        method.before_step(pl_module, own, self.read_batch(found), lr)

    def use(self, trainer: Any, pl_module: Any, predictions: Predictions) -> None:
        """Update method state; log the numbers, but not lists with one for each class."""
        found = self.method.after_epoch(predictions)
        numbers = {name: value for name, value in found.items() if isinstance(value, float)}
        pl_module.log_dict(numbers, sync_dist=True)

    def state_dict(self) -> dict[str, Any]:
        """Method state, and the position in the held-out data."""
        return {"method": self.method.state_dict(), "batches": self.batches}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load both."""
        self.method.load_state_dict(state_dict["method"])
        self.batches = state_dict["batches"]


def _learns_after_epoch(method: Method) -> bool:
    return type(method).after_epoch is not Method.after_epoch


def learning_rate(optimizers: list[torch.optim.Optimizer], model: nn.Module) -> float:
    """Current learning rate of the last layer, of which methods compute a lookahead step."""
    groups = [group for each in optimizers for group in each.param_groups]
    head = find_head(model)
    of_head = (g for g in groups if head and any(each is head.weight for each in g["params"]))
    return float(next(of_head, groups[0])["lr"])
