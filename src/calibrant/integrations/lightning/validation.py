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
from calibrant.scoped_warnings import warn
from calibrant.shapes import flatten_dense, shape
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
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        keys = f" with the keys {sorted(outputs)}" if isinstance(outputs, Mapping) else ""
        raise TypeError(
            'validation_step must return {"logits": (n, k), "labels": (n,)}, got '
            f"{type(outputs).__name__}{keys}; or pass read=lambda outputs, batch: (logits, labels)"
        )
    if logits.ndim < 2 or logits.shape[1] < 2:
        raise TypeError(
            f"validation_step must return (n, k) logits of k >= 2 classes, got logits "
            f"{shape(logits)} and labels {shape(labels)}; for log-odds z of class 1 pass read=..., "
            "which returns torch.stack([0 * z, z], 1) with z of shape (n,), and the labels"
        )
    return logits, labels


class ValidationCallback(*_bases()):  # type: ignore[misc]
    """Collects logits and labels of each validation."""

    def __init__(self, read: Read, ignore_index: int | None, loader: int = 0) -> None:
        self.read, self.ignore_index, self.loader = read, ignore_index, loader
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._left = math.inf
        self._warned: set[str] = set()

    def warn_once(self, about: str, message: str) -> None:
        """Warn, but not again at the next validation."""
        if about not in self._warned:
            self._warned.add(about)
            warn(message, stacklevel=2)

    def wants_predictions(self, trainer: Any) -> bool:
        """Whether this validation is used; a sanity check is read, but never used."""
        return True

    def use(self, trainer: Any, pl_module: Any, predictions: Predictions) -> None:
        """Use the predictions of a validation, which are the same in every process."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        self.begin(trainer.val_dataloaders)
        count = len(loaders_of(trainer.val_dataloaders))
        if trainer.state.fn == "fit" and self.loader >= count:
            raise ValueError(f"loader must be below {count}, the number of validation loaders")

    def begin(self, loaders: Any) -> None:
        """Forget the examples before."""
        found = loaders_of(loaders)[self.loader :]
        self._parts, self._left = [], own_examples(found[0]) if found else math.inf

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch of the loader."""
        if dataloader_idx == self.loader and self.wants_predictions(trainer):
            self.add(*self.read(outputs, batch))

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch."""
        count = int(min(self._left, len(logits)))
        self._left -= count
        logits, labels = promote_dtype(logits.detach()[:count]).cpu(), labels[:count].cpu()
        if logits.ndim > 2:
            logits, labels, _ = flatten_dense(logits, labels, ignore_index=self.ignore_index)
        self._parts.append((logits, labels))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Gather the predictions and use them."""
        found = self.gather(trainer, pl_module)
        if found is not None:
            self.use(trainer, pl_module, found)

    def gather(self, trainer: Any, pl_module: Any) -> Predictions | None:
        """Predictions of all processes; None in a sanity check, or if there are none."""
        parts, self._parts = self._parts, []
        if not parts or trainer.sanity_checking:
            return None
        ranks = ranks_of(trainer, pl_module)
        logits, labels = (
            ranks.gather(torch.cat(each).to(pl_module.device)).cpu()
            for each in zip(*parts, strict=True)
        )
        if look_like_probs(logits):
            self.warn_once(
                "probs",
                "logits look like probabilities: each row is >= 0 and sums to 1; return "
                "unnormalised scores, or their log",
            )
        if are_repeated(logits, labels, trainer.world_size):
            self.warn_once(
                "repeated",
                "every process has the same validation examples, so each is counted "
                f"{trainer.world_size} times: use a DistributedSampler",
            )
        return Predictions(logits, labels)


def ranks_of(trainer: Any, pl_module: Any) -> Ranks:
    """The processes of a trainer, as a method sees them."""
    return SingleProcess() if trainer.world_size == 1 else ProcessGroup(pl_module.device)


def loaders_of(loaders: Any) -> list[Any]:
    """Loaders as a list, in the order of their index."""
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, Sequence) else [loaders]


def own_examples(loader: Any) -> float:
    """Examples of this process without those that a DistributedSampler repeats at its end."""
    sampler: Any = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return math.inf
    dataset: Any = sampler.dataset
    return len(range(sampler.rank, len(dataset), sampler.num_replicas))


def look_like_probs(logits: Tensor) -> bool:
    """Whether all rows can be probabilities, which unnormalised scores never are by chance."""
    return bool((logits >= 0).all() and ((logits.sum(1) - 1).abs() < 1e-4).all())


def are_repeated(logits: Tensor, labels: Tensor, world_size: int) -> bool:
    """Whether every process has the same examples, which come one process after the other."""
    if world_size == 1 or len(labels) % world_size:
        return False
    by_rank = logits.reshape(world_size, -1), labels.reshape(world_size, -1)
    return all(torch.allclose(each, each[:1].expand_as(each)) for each in by_rank)
