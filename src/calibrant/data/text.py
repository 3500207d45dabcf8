"""From documents to token ids."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

PAD, UNKNOWN = 0, 1
# Letters and digits of any alphabet, with an apostrophe inside: don't, o'clock.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

Words = list[str]


def words_of(document: str, length: int) -> Words:
    """The first words of a document, in lower case.

    >>> words_of("Don't PANIC: it's 42!", 3)
    ["don't", 'panic', "it's"]
    """
    return _WORD.findall(document.lower())[:length]


def vocabulary_of(documents: Sequence[Words], size: int) -> dict[str, int]:
    """Ids of the most frequent words, ties in alphabetical order; 0 pads and 1 is unknown."""
    counts = Counter(chain.from_iterable(documents))
    # Two sorts are faster than one with a (count, word) key.
    ordered = sorted(sorted(counts), key=counts.__getitem__, reverse=True)
    return {word: number for number, word in enumerate(ordered[: size - 2], start=2)}


def encoded(documents: Sequence[Words], numbers: dict[str, int], length: int) -> Tensor:
    """Token ids, (n, length), int64, padded with 0 at the end."""
    sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    flat = np.fromiter(
        (numbers.get(word, UNKNOWN) for word in chain.from_iterable(documents)),
        dtype=np.int64,
        count=int(sizes.sum()),
    )
    tokens = np.zeros((len(documents), length), dtype=np.int64)
    tokens[np.arange(length) < sizes[:, None]] = flat
    return torch.from_numpy(tokens)
