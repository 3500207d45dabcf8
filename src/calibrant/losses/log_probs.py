"""What losses are made of: log-probabilities of the label and of the rest, and the top class."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from calibrant.checks import promote_dtype
from calibrant.shapes import Labels, Logits, PerExample

# Log of 1 - p_y where no other class is allowed: its exponential is 0, its gradient a number.
NOTHING = -1e30


def log_probs(logits: Logits) -> Logits:
    """Log-softmax, in float32 for half precision; the gradient flows back to the half input."""
    return torch.log_softmax(_rows(logits), 1)


def _rows(logits: Logits) -> Logits:
    """The same in float32 at least; what is not one row of classes for each example raises."""
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be (n, k), got {tuple(logits.shape)}: flatten pixels and tokens with "
            "calibrant.shapes.flatten_dense"
        )
    if logits.shape[1] < 2:
        raise ValueError(f"need at least 2 classes, got logits of shape {tuple(logits.shape)}")
    return promote_dtype(logits)


def column(labels: Labels, like: Logits) -> Int[Tensor, "n 1"]:
    """Labels as indices into the classes, (n, 1); what is not one class index a row raises."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be class indices, got dtype {labels.dtype}")
    if tuple(labels.shape) != (len(like),):
        raise ValueError(f"labels must be ({len(like)},), got {tuple(labels.shape)}")
    # On a GPU looking at the values would wait for it; there torch itself stops at a bad index.
    if not labels.is_cuda and len(labels):
        low, high = (int(each) for each in labels.aminmax())
        if low < 0 or high >= like.shape[1]:
            bad = low if low < 0 else high
            raise ValueError(
                f"label {bad} is no class: labels lie in [0, {like.shape[1] - 1}]; leave out what "
                "does not count, in masks by ignore_index"
            )
    return labels.long()[:, None]


def of_label(log_p: Logits, labels: Labels) -> PerExample:
    """Log-probability of each example's label; a label that is no class raises."""
    return log_p.gather(1, column(labels, log_p))[:, 0]


def without_label(log_p: Logits, labels: Labels, *, filling: float = -torch.inf) -> Logits:
    """The same rows with the label's entry at -inf, which is probability zero."""
    return log_p.scatter(1, column(labels, log_p), filling)


def of_others(log_p: Logits, labels: Labels) -> PerExample:
    """Log of 1 - p_y, summed over the other classes: exact where p_y rounds to 1."""
    return without_label(log_p, labels, filling=NOTHING).logsumexp(1)


def allowed(logits: Logits) -> Bool[Tensor, "n k"]:
    """Classes that are not masked by a logit, or log-probability, of -inf."""
    return logits > -torch.inf


def over_allowed(terms: Logits, logits: Logits) -> PerExample:
    """Mean over the allowed classes of each example; terms of masked ones may be anything."""
    there = allowed(logits)
    return terms.where(there, 0).sum(1) / there.sum(1)


def batch_probs(logits: Logits) -> Logits:
    """Probabilities of a batch that is not empty, for statistics of it."""
    if not len(logits):
        raise ValueError("a statistic of the batch needs at least 1 example, got 0")
    return torch.softmax(_rows(logits), 1)


def top_class(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Confidence, with gradient, and correctness, 0 or 1 without."""
    probs = batch_probs(logits)
    # A label that is no class, such as -100, must not pass for a wrong prediction.
    own = column(labels, probs)
    if own.is_cuda:
        probs.detach().gather(1, own)
    confidence, predicted = probs.max(1)
    return confidence, (predicted == labels).to(confidence.dtype)
