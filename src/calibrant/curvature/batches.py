"""Data of a measurement: batches of inputs and labels, read once for every pass."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from calibrant.shapes import flatten_dense, shape

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
Pair: TypeAlias = tuple[Inputs, Tensor]
# One pair (a single batch), or batches that can be iterated repeatedly (a list, a DataLoader).
Data: TypeAlias = Any


def read_batches(data: Data) -> Iterator[Pair]:
    """Iterate over the batches once; raises unless there is at least one (inputs, labels) pair."""
    if _is_pair(data):
        data = [data]
    if not isinstance(data, Iterable) or isinstance(data, Tensor | Mapping):
        raise TypeError(
            "data must be a pair (inputs, labels) or batches of such pairs, "
            f"got {type(data).__name__}"
        )
    if isinstance(data, Iterator):
        raise TypeError("data is an iterator, which can be iterated only once: pass list(data)")
    found = False
    for batch in data:
        if not _is_pair(batch):
            raise TypeError(
                "each batch must be a pair (inputs, labels) of tensors (inputs may be a mapping of "
                f"tensors), got {_described(batch)}"
            )
        inputs, labels = batch
        if length(inputs) != len(labels):
            raise ValueError(f"a batch has {length(inputs)} inputs and {len(labels)} labels")
        if len(labels):
            found = True
            yield inputs, labels
    if not found:
        raise ValueError("data has no examples: need at least 1")


def join_batches(data: Data) -> Pair:
    """All batches as one pair; all inputs must have the same shape."""
    if _is_pair(data):
        return next(read_batches(data))
    with same_randomness():
        batches = list(read_batches(data))
    inputs, labels = zip(*batches, strict=True)
    try:
        if isinstance(inputs[0], Mapping):
            joined: Inputs = {key: torch.cat([each[key] for each in inputs]) for key in inputs[0]}
        else:
            joined = torch.cat(inputs)
        return joined, torch.cat(labels)
    except (KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the batches of data cannot be concatenated ({reason}): pad inputs to one shape"
        ) from None


def length(inputs: Inputs) -> int:
    """Number of examples."""
    return len(next(iter(inputs.values()))) if isinstance(inputs, Mapping) else len(inputs)


def take(inputs: Inputs, index: Tensor | slice) -> Inputs:
    """The examples at the given positions."""
    if isinstance(inputs, Mapping):
        return {key: value[index] for key, value in inputs.items()}
    return inputs[index]


def move_inputs(inputs: Inputs, like: Tensor) -> Inputs:
    """Inputs with the device and dtype of the weights; images in channels-last format."""
    if isinstance(inputs, Mapping):
        return {key: _move(value, like) for key, value in inputs.items()}
    return _move(inputs, like)


def model_logits(
    model: nn.Module, state: Mapping[str, Tensor], inputs: Inputs
) -> Float[Tensor, "n k ..."]:
    """Logits of a model whose tensors are replaced by those of a state."""
    if isinstance(inputs, Mapping):
        output: Any = torch.func.functional_call(model, dict(state), (), dict(inputs))
    else:
        output = torch.func.functional_call(model, dict(state), (inputs,))
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            "the model must return logits, or an object with an attribute .logits, "
            f"got {type(output).__name__}"
        )
    return logits


def flatten_valid(
    logits: Float[Tensor, "n k ..."], labels: Int[Tensor, "n ..."], *, ignore_index: int | None
) -> tuple[Float[Tensor, "m k"], Int[Tensor, " m"]]:
    """Logits (m, k) and labels (m,) without ignored ones: of examples, or of pixels."""
    if logits.ndim > 2:
        flat, classes, _ = flatten_dense(logits, labels, ignore_index=ignore_index)
        return flat, classes
    if logits.ndim < 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits must be (n, k) with labels (n,), or (n, k, h, w) with labels (n, h, w), "
            f"got {shape(logits)} and {shape(labels)}"
        )
    if ignore_index is None:
        return logits, labels
    keep = labels != ignore_index
    return logits[keep], labels[keep]


@contextmanager
def same_randomness() -> Iterator[None]:
    """Seed torch's global generators inside, and restore them afterwards.

    A loader that shuffles or augments with the global generator then repeats its batches.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        yield


def _move(value: Tensor, like: Tensor) -> Tensor:
    value = value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def _is_pair(value: Any) -> bool:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        return False
    inputs, labels = value
    if isinstance(inputs, Mapping):
        tensors = bool(inputs) and all(isinstance(each, Tensor) for each in inputs.values())
    else:
        tensors = isinstance(inputs, Tensor)
    return tensors and isinstance(labels, Tensor)


def _described(batch: Any) -> str:
    if isinstance(batch, tuple | list):
        return f"{len(batch)} of {', '.join(type(each).__name__ for each in batch)}"
    return type(batch).__name__
