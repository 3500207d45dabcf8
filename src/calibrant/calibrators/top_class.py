"""The predicted class kept where rounding would lose it."""

import torch
from torch import Tensor

from calibrant.shapes import Logits


def with_top_of(logits: Logits, log_probs: Logits) -> Logits:
    """Let the highest logit have the highest log-probability, the first of them if several tie.

    A map that keeps the order of real numbers can make equal, or exchange, two that differ in the
    last digit. Such rivals of the top class are put one rounding unit below it.
    """
    best = logits.argmax(1, keepdim=True)
    lost = log_probs.argmax(1, keepdim=True) != best
    if not bool(lost.any()):
        return log_probs
    lowered = _lowered(log_probs, best, lost)
    # A step between two that should be equal takes more than rounding away: sum to one again.
    whole = torch.where(lost, torch.log_softmax(lowered, 1), lowered)
    return _lowered(whole, best, lost)


def _lowered(log_probs: Logits, best: Tensor, lost: Tensor) -> Logits:
    """Put what is not below the top class, in the rows that lost it, just below."""
    own = log_probs.gather(1, best)
    fixed = own.detach()
    # Its value is exactly the next number below; its gradient is that of the top class.
    below = own + (torch.nextafter(fixed, torch.full_like(fixed, -torch.inf)) - fixed)
    rivals = (lost & (log_probs >= own)).scatter(1, best, False)
    return torch.where(rivals, below, log_probs)
