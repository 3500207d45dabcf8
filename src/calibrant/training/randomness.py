"""Random states: seeded for a training run, kept in its checkpoints, and restored afterwards."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_state() -> dict[str, Any]:
    """States of torch (every device), numpy and Python, as tensors and plain numbers."""
    version, inner, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    words = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(inner), gauss],
        "numpy": [kind, words, position, has_gauss, cached],
    }


def restore(state: Mapping[str, Any]) -> None:
    """Restore these states."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, inner, gauss = state["python"]
    random.setstate((version, tuple(inner), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (kind, keys.numpy().astype(np.uint32), position, has_gauss, cached)
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed everything inside, and restore the state afterwards."""
    before = random_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        restore(before)


def epoch_order(n: int, *, seed: int, epoch: int) -> Tensor:
    """Order of the training examples in an epoch; a function of nothing but its arguments."""
    key = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.randperm(n, generator=torch.Generator().manual_seed(key))


def meta_order(n: int, size: int, *, seed: int, position: int) -> Tensor:
    """Held-out examples of one meta step: `size` of n, by turns through all of them."""
    size = min(size, n)
    turn, at = divmod(position, n // size)
    return epoch_order(n, seed=seed + 1, epoch=turn)[at * size : (at + 1) * size]
