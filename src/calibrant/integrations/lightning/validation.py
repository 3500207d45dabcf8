"""The base of our callbacks: predictions of each validation, from all processes."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from calibrant.checks import promote_dtype
from calibrant.extras import need
from calibrant.methods import Ranks, SingleProcess
from calibrant.predictions import Predictions
from calibrant.shapes import flatten_dense
from calibrant.training.distributed import ProcessGroup

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Logits and labels, from what a validation step returned and its batch.
Read = Callable[[Any, Any], tuple[Tensor, Tensor]]


def _bases() -> tuple[type, ...]:
    """The callback class of each package that is imported, or else of one that is installed."""
    loaded = [name for name in PACKAGES if sys.modules.get(name)]
    installed = [name for name in PACKAGES if find_spec(name.partition(".")[0])]
    what = "calibrant.integrations.lightning"
    names = loaded or installed[:1] or PACKAGES[:1]
    return tuple(need(name, extra="lightning", what=what).Callback for name in names)


def read_outputs(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels of what `validation_step` returned.

    That is a mapping with both, or logits alone where the batch is a pair of inputs and labels.
    """
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    found = outputs if isinstance(outputs, Mapping) else {"logits": outputs}
    logits, labels = found.get("logits"), found.get("labels", batch[1] if pair else None)
    if not (isinstance(logits, Tensor) and logits.ndim > 1 and isinstance(labels, Tensor)):
        keys = f" with the keys {sorted(outputs)}" if isinstance(outputs, Mapping) else ""
        raise TypeError(
            'validation_step must return {"logits": (n, k), "labels": (n,)}, got '
            f"{type(outputs).__name__}{keys}; or pass read=lambda outputs, batch: (logits, labels)"
        )
    return logits, labels


class ValidationCallback(*_bases()):  # type: ignore[misc]
    """Collects logits and labels of each validation."""

    def __init__(self, read: Read, ignore_index: int | None) -> None:
        self.read, self.ignore_index = read, ignore_index
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._left = math.inf

    def wants_predictions(self, trainer: Any) -> bool:
        """Whether this validation is used; a sanity check is read, but never used."""
        return True

    def use(self, trainer: Any, pl_module: Any, predictions: Predictions) -> None:
        """Use the predictions of a validation, which are the same in every process."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        self._parts, self._left = [], own_examples(trainer.val_dataloaders)

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch of the first loader."""
        if dataloader_idx or not self.wants_predictions(trainer):
            return
        logits, labels = self.read(outputs, batch)
        count = int(min(self._left, len(logits)))
        self._left -= count
        logits, labels = promote_dtype(logits.detach()[:count]).cpu(), labels[:count].cpu()
        if logits.ndim > 2:
            logits, labels, _ = flatten_dense(logits, labels, ignore_index=self.ignore_index)
        self._parts.append((logits, labels))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Gather the predictions and use them."""
        parts, self._parts = self._parts, []
        if parts and not trainer.sanity_checking:
            ranks = ranks_of(trainer, pl_module)
            logits, labels = (
                ranks.gather(torch.cat(each).to(pl_module.device)).cpu()
                for each in zip(*parts, strict=True)
            )
            self.use(trainer, pl_module, Predictions(logits, labels))


def ranks_of(trainer: Any, pl_module: Any) -> Ranks:
    """The processes of a trainer, as a method sees them."""
    return SingleProcess() if trainer.world_size == 1 else ProcessGroup(pl_module.device)


def own_examples(loaders: Any) -> float:
    """Examples of this process without those that a DistributedSampler repeats at its end."""
    found = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
    first = found[0] if isinstance(found, Sequence) else found
    sampler: Any = getattr(first, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return math.inf
    dataset: Any = sampler.dataset
    return len(range(sampler.rank, len(dataset), sampler.num_replicas))
