"""Random orders that keep the classes in proportion; every cut of the data is a piece of one."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from calibrant.shapes import Index


class Purpose(IntEnum):
    """What random numbers are for: two purposes never share a stream, even for one seed."""

    TEST = 0
    VAL = 1
    LIMIT = 2
    TAIL = 3
    NOISE = 4
    META = 5


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """A stream of its own for each seed and purpose."""
    return np.random.default_rng([int(seed), int(purpose)])


def stratified_order(labels: NDArray[np.int64], seed: int, purpose: Purpose) -> Index:
    """Positions in a random order of which every beginning holds the classes in proportion.

    The example of rank r (from 0) among the m of its class stands at (r + 1/2) / m of the way, so
    the first 10 % hold 10 % of each class, up to rounding. Beginnings are nested by nature.
    """
    shuffled = generator(seed, purpose).permutation(len(labels))
    mixed = labels[shuffled]
    by_class = mixed.argsort(kind="stable")
    counts = np.bincount(mixed, minlength=1)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - starts[mixed[by_class]]
    place = (rank + 0.5) / counts[mixed]
    return shuffled[place.argsort(kind="stable")]
