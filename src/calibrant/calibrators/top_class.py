"""Preserve the predicted class against rounding."""

import torch
from torch import Tensor

from calibrant.shapes import Logits


def restore_top_class(logits: Logits, log_probs: Logits) -> Logits:
    """Give the highest log-probability to the highest logit, the first of them if several tie.

    A monotone map can tie or swap two classes that differ in the last digit. Such classes are
    lowered to one rounding unit below the top class.
    """
    best = logits.argmax(1, keepdim=True)
    lost = log_probs.argmax(1, keepdim=True) != best
    if not bool(lost.any()):
        return log_probs
    lowered = _lower_rivals(log_probs, best, lost)
    # Lowering can remove more than rounding from the sum: normalise again.
    normalised = torch.where(lost, torch.log_softmax(lowered, 1), lowered)
    return _lower_rivals(normalised, best, lost)


def _lower_rivals(log_probs: Logits, best: Tensor, lost: Tensor) -> Logits:
    """Lower classes that are not below the top class, in the rows that lost it."""
    own = log_probs.gather(1, best)
    fixed = own.detach()
    # The value is the next number below; the gradient is that of the top class.
    below = own + (torch.nextafter(fixed, torch.full_like(fixed, -torch.inf)) - fixed)
    rivals = (lost & (log_probs >= own)).scatter(1, best, False)
    return torch.where(rivals, below, log_probs)
