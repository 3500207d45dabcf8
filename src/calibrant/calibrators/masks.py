"""Masked classes: a logit of -inf says that the class is impossible for that example.

Such an example is calibrated as if the class did not exist: parameters of the class are not used,
and its probability is exactly 0. A mask is None where nothing is masked.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from calibrant.shapes import Logits

Mask = Bool[Tensor, "n k"]
# A masked logit lies below all others by this many times the largest of them.
FAR = 1e30
LOWEST = -1e300


def mask_of(logits: Logits) -> Mask | None:
    """Where logits are -inf; None if nowhere."""
    if not logits.numel() or bool(logits.detach().min() > -torch.inf):
        return None
    return logits.isneginf()


def without_masked(scores: Logits, masked: Mask | None) -> Logits:
    """Set scores of masked classes to 0, so that they add nothing to a weighted sum."""
    return scores if masked is None else scores.masked_fill(masked, 0.0)


def log_softmax(scores: Logits, masked: Mask | None) -> Logits:
    """Normalise over the allowed classes; the others get -inf."""
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    return torch.log_softmax(scores, 1)


def log_sum(members: Iterable[Logits], masked: Mask | None) -> Logits:
    """Logarithm of a sum of probabilities; -inf where masked."""
    # The gradient of the log of 0 + 0 would be NaN.
    filled = (without_masked(member, masked) for member in members)
    total = next(filled)
    for member in filled:
        total = torch.logaddexp(total, member)
    return total if masked is None else total.masked_fill(masked, -torch.inf)


def allowed_counts(masked: Mask | None, classes: int) -> int | Tensor:
    """Number of allowed classes of each example: k, or (n, 1) where some are masked."""
    return classes if masked is None else (~masked).sum(1, keepdim=True)


def infinite_odds(masked: Mask) -> Mask:
    """Where log-odds are infinite: masked classes, and the only allowed class of an example."""
    return masked | ((~masked).sum(1, keepdim=True) == 1)


def ever_allowed(logits: Logits) -> np.ndarray:
    """Which classes are allowed in some example, (k,) booleans."""
    if mask_of(logits) is None:
        return np.ones(logits.shape[1], dtype=bool)
    return np.asarray((logits > -torch.inf).any(0).numpy())


def far_below(logits: Logits) -> Logits:
    """Replace masked logits by finite ones, in float64.

    They lie so far below the others that their probabilities are exactly 0 at any temperature.
    """
    masked = mask_of(logits)
    if masked is None:
        return logits
    wide = logits.double()
    largest = float(wide.masked_fill(masked, 0.0).abs().max())
    return wide.masked_fill(masked, max(-FAR * (1 + largest), LOWEST))
