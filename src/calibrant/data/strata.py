"""Stratified random orders; every split of the data is a slice of one."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from calibrant.shapes import Index


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
