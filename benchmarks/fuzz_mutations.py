"""Ways in which the bytes of a file are damaged; each is a function of a random generator."""

from collections.abc import Callable

import numpy as np

# Longest block that is moved, removed or overwritten.
BLOCK = 64


def flip(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """One bit is another."""
    at = int(rng.integers(len(data)))
    return _put(data, at, bytes([data[at] ^ 1 << int(rng.integers(8))]))


def overwrite(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Up to eight bytes in a row are others."""
    return _put(data, int(rng.integers(len(data))), rng.bytes(int(rng.integers(1, 9))))


def truncate(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """The end is missing."""
    return data[: int(rng.integers(len(data)))]


def insert(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Up to sixteen bytes too many."""
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 17))) + data[at:]


def remove(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """A block is missing."""
    start, end = _block(rng, data)
    return data[:start] + data[end:]


def duplicate(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """A block comes twice."""
    start, end = _block(rng, data)
    return data[:end] + data[start:]


def swap(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Two blocks have changed places."""
    size = int(rng.integers(1, max(2, min(BLOCK, len(data) // 2))))
    one, two = (int(rng.integers(max(1, len(data) - size))) for _ in range(2))
    return _put(_put(data, one, data[two : two + size]), two, data[one : one + size])


def digits(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Up to three decimal digits are others; without any digit, a bit is."""
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return flip(rng, data, other)
    for at in rng.choice(places, size=int(rng.integers(1, 4))):
        data = _put(data, int(at), bytes([48 + int(rng.integers(10))]))
    return data


def splice(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """A block of another file of the same kind is in the place of ours."""
    start, end = _block(rng, data)
    return data[:start] + other[start:end] + data[end:]


def join(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another of the same kind."""
    at = int(rng.integers(1, len(data)))
    return data[:at] + other[at:]


MUTATIONS: tuple[Callable[[np.random.Generator, bytes, bytes], bytes], ...] = (
    flip,
    flip,
    flip,
    overwrite,
    truncate,
    insert,
    remove,
    duplicate,
    swap,
    digits,
    splice,
    join,
)


def mutated(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """The bytes after one mutation, or seldom two; never those of an undamaged file."""
    while True:
        changed = data
        for _ in range(1 if rng.random() < 0.9 else 2):
            if len(changed) > 1:
                changed = MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, changed, other)
        if changed not in (data, other):
            return changed


def _put(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new[: len(data) - at] + data[at + len(new) :]


def _block(rng: np.random.Generator, data: bytes) -> tuple[int, int]:
    start = int(rng.integers(len(data)))
    return start, min(len(data), start + int(rng.integers(1, BLOCK + 1)))
