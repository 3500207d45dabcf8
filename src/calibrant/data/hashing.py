"""Random numbers by hashing: pure functions of seed, epoch, purpose and example."""

import numpy as np
from numpy.typing import NDArray

from calibrant.shapes import Index, Values

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


def uniform(seed: int, epoch: int, draw: int, index: Index) -> Values:
    """One number in [0, 1) per example, independent of the other examples of the call.

    Each of the four arguments passes through SplitMix64's mixing step.

    References:
        Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in (seed, epoch, draw):
        key = _hash(key ^ np.uint64(part))
    bits = _hash(_hash(key ^ index.astype(np.uint64)))
    return (bits >> _11) * 2.0**-53


def _hash(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Unsigned arrays wrap around on overflow, as intended.
    key = key + _STEP
    key = (key ^ (key >> _30)) * _FIRST
    key = (key ^ (key >> _27)) * _SECOND
    return key ^ (key >> _31)
