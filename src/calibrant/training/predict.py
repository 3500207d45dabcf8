"""Predictions of a network for a split."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from calibrant.data import Batch, Split
from calibrant.model_modes import evaluating
from calibrant.predictions import Predictions
from calibrant.training.runtime import Runtime

# Numbers of the inputs of a batch: enough to keep the device busy, few enough for a CPU's cache.
ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 19}


def predict(
    model: nn.Module,
    split: Split,
    *,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
    runtime: Runtime | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> Predictions:
    """Logits and labels of every example, in order; of pixels, grouped by image.

    Args:
        model: put into evaluation mode for the time being.
        split: as stored; it is scaled batch by batch.
        ignore_index: label of ignored pixels.
        class_names: one for each class.
        runtime: processes that share the work; each gets all predictions.
        after_batch: called after every batch.

    Examples:
        >>> from calibrant import data, models
        >>> splits = data.load("blobs", 0)
        >>> network = models.build("mlp", classes=splits.classes, shape=splits.shape)
        >>> len(predict(network, splits.val)) == len(splits.val)
        True
    """
    runtime = runtime or Runtime(_like(model).device)
    logits = runtime.gather(_logits(model, split, runtime, after_batch).to(runtime.device)).cpu()
    if not logits.isfinite().all():
        raise FloatingPointError("the network's logits are not finite")
    if class_names is not None and logits.shape[1] != len(class_names):
        raise ValueError(
            f"the network gives {logits.shape[1]} logits, the data have {len(class_names)} classes"
        )
    if logits.ndim == 2:
        return Predictions(logits, split.labels, class_names=class_names)
    return Predictions.from_dense(
        logits, split.labels, ignore_index=ignore_index, class_names=class_names
    )


def _logits(
    model: nn.Module, split: Split, runtime: Runtime, after_batch: Callable[[], None]
) -> Tensor:
    """Logits of this process's share of the split, which is one stretch of it."""
    share = -(-len(split) // runtime.world_size)
    mine = torch.arange(len(split))[runtime.rank * share : (runtime.rank + 1) * share]
    elements = ELEMENTS.get(runtime.device.type, ELEMENTS["cuda"])
    step = max(1, elements // max(1, split.inputs[0].numel()))
    dtype = _like(model).dtype
    found = []
    with evaluating(model), torch.no_grad():
        for start in range(0, max(1, len(mine)), step):
            index = mine[start : start + step]
            inputs = placed(split.batch(index).inputs, runtime.device, dtype)
            found.append(model(inputs).float() if dtype is not torch.float64 else model(inputs))
            after_batch()
    return torch.cat(found)


def _like(model: nn.Module) -> Tensor:
    """A tensor where the network is and of its type; the usual ones if it has no weights."""
    return next((each for each in model.parameters() if each.is_floating_point()), torch.zeros(()))


def placed(inputs: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Inputs where the network is, in its precision, images with their channels last."""
    if inputs.is_floating_point():
        inputs = inputs.to(device, dtype, non_blocking=True)
    else:
        inputs = inputs.to(device, non_blocking=True)
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def placed_batch(batch: Batch, device: torch.device, dtype: torch.dtype) -> Batch:
    """A batch whose tensors are where the network is."""
    return Batch(
        placed(batch.inputs, device, dtype),
        batch.labels.to(device),
        batch.index,
        None if batch.other_labels is None else batch.other_labels.to(device),
        None if batch.share is None else batch.share.to(device),
    )
