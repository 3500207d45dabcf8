"""Stratified random orders, long-tailed subsets, and groups of frequent and rare classes."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.shapes import Index

Group = Literal["head", "medium", "tail"]


class Purpose(IntEnum):
    """Purpose of random numbers: each has its own stream for every seed."""

    TEST = 0
    VAL = 1
    LIMIT = 2
    TAIL = 3
    NOISE = 4
    META = 5


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """The random generator of a seed and a purpose."""
    return np.random.default_rng([int(seed), int(purpose)])


def stratified_order(labels: NDArray[np.int64], seed: int, purpose: Purpose) -> Index:
    """Positions in a random order of which every prefix is stratified by class.

    The example of rank r (from 0) among the m of its class is sorted by (r + 1/2) / m, so the first
    10 % contain 10 % of each class, up to rounding. Prefixes are nested.
    """
    shuffled = generator(seed, purpose).permutation(len(labels))
    classes = labels[shuffled]
    by_class = classes.argsort(kind="stable")
    counts = np.bincount(classes, minlength=1)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - starts[classes[by_class]]
    position = (rank + 0.5) / counts[classes]
    return shuffled[position.argsort(kind="stable")]


def tail_sizes(available: NDArray[np.int64], imbalance: float) -> NDArray[np.int64]:
    r"""Number of examples of each class, $n_c = n_{max}\, imbalance^{-c / (K - 1)}$.

    Rounded down, at least 1, and at most the size of the class; $n_{max}$ is the size of the
    largest class, so `imbalance` is the ratio of the first class to the last for equal classes.

    References:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019,
        arXiv:1901.05555.
    """
    last = max(len(available) - 1, 1)
    profile = available.max() * imbalance ** -(np.arange(len(available)) / last)
    # The small summand keeps 500 / 100 at 5 where the power rounds down.
    sizes: NDArray[np.int64] = np.maximum((profile + 1e-9).astype(np.int64), 1)
    return np.minimum(sizes, available)


def long_tailed(labels: NDArray[np.int64], classes: int, imbalance: float, seed: int) -> Index:
    """Sorted positions of a long-tailed subset; a larger imbalance gives a smaller subset of it."""
    sizes = tail_sizes(np.bincount(labels, minlength=classes), imbalance)
    shuffled = generator(seed, Purpose.TAIL).permutation(len(labels))
    kept = [shuffled[labels[shuffled] == c][:size] for c, size in enumerate(sizes)]
    return np.sort(np.concatenate(kept))


def tail_groups(labels: Tensor, classes: int, many: int = 100, few: int = 20) -> tuple[Group, ...]:
    """Group of each class: 'head' with more than `many` training examples, 'tail' below `few`.

    All others are 'medium'. Pass the labels of train.

    Examples:
        >>> import torch
        >>> tail_groups(torch.tensor([0] * 101 + [1] * 100 + [2] * 19), classes=3)
        ('head', 'medium', 'tail')
    """
    counts = np.bincount(labels.numpy(), minlength=classes)
    if len(counts) > classes:
        raise ValueError(f"labels must lie below classes={classes}, got {int(labels.max())}")
    return frequency_groups(counts.tolist(), many=many, few=few)


def frequency_groups(counts: Sequence[int], *, many: int = 100, few: int = 20) -> tuple[Group, ...]:
    """`tail_groups` from the number of examples of each class.

    Examples:
        >>> frequency_groups([101, 100, 19])
        ('head', 'medium', 'tail')
    """
    if not 0 <= few <= many + 1:
        raise ValueError(f"few must lie in [0, many + 1], got few={few} and many={many}")
    return tuple("head" if n > many else "tail" if n < few else "medium" for n in counts)
