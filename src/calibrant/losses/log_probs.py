"""Building blocks of losses: log-probabilities of label and other classes, confidence."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from calibrant.checks import promote_dtype
from calibrant.shapes import Labels, Logits, PerExample

# Stands for log 0 where no other class is allowed: its exponential is 0 and its gradient finite.
LOG_ZERO = -1e30


def log_probs(logits: Logits) -> Logits:
    """Log-softmax, computed in float32 for half precision; gradients reach the half input."""
    return torch.log_softmax(_check_logits(logits), 1)


def _check_logits(logits: Logits) -> Logits:
    """Require (n, k) logits with k >= 2, and return them in at least float32."""
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be (n, k), got {tuple(logits.shape)}: flatten pixels and tokens with "
            "calibrant.shapes.flatten_dense"
        )
    if logits.shape[1] < 2:
        raise ValueError(f"need at least 2 classes, got logits of shape {tuple(logits.shape)}")
    return promote_dtype(logits)


def label_index(labels: Labels, like: Logits) -> Int[Tensor, "n 1"]:
    """Labels as (n, 1) indices for `gather` and `scatter`; raises unless all are valid classes."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be class indices, got dtype {labels.dtype}")
    if tuple(labels.shape) != (len(like),):
        raise ValueError(f"labels must be ({len(like)},), got {tuple(labels.shape)}")
    # Not on a GPU, which would synchronise; there torch itself raises for a bad index.
    if not labels.is_cuda and len(labels):
        low, high = (int(each) for each in labels.aminmax())
        if low < 0 or high >= like.shape[1]:
            bad = low if low < 0 else high
            raise ValueError(
                f"labels must lie in [0, {like.shape[1] - 1}], got {bad}; drop ignored examples, "
                "in masks by ignore_index"
            )
    return labels.long()[:, None]


def take_label(log_p: Logits, labels: Labels) -> PerExample:
    """Log-probability (or logit) of each example's label; raises for an invalid label."""
    return log_p.gather(1, label_index(labels, log_p))[:, 0]


def mask_label(log_p: Logits, labels: Labels, *, fill: float = -torch.inf) -> Logits:
    """Replace the entry of each example's label by -inf, which is probability zero."""
    return log_p.scatter(1, label_index(labels, log_p), fill)


def log_one_minus_p(log_p: Logits, labels: Labels) -> PerExample:
    """log(1 - p_y), as a sum over the other classes: accurate where p_y rounds to 1."""
    return mask_label(log_p, labels, fill=LOG_ZERO).logsumexp(1)


def allowed(logits: Logits) -> Bool[Tensor, "n k"]:
    """Which classes are not masked by a logit, or log-probability, of -inf."""
    return logits > -torch.inf


def mean_over_allowed(terms: Logits, logits: Logits) -> PerExample:
    """Mean over the allowed classes of each example; masked classes are ignored."""
    valid = allowed(logits)
    return terms.where(valid, 0).sum(1) / valid.sum(1)


def batch_probs(logits: Logits) -> Logits:
    """Probabilities, for a batch statistic; raises for an empty batch."""
    if not len(logits):
        raise ValueError("a batch statistic needs at least 1 example, got 0")
    return torch.softmax(_check_logits(logits), 1)


def confidence_and_correct(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Confidence, with gradient, and correctness (0 or 1), without."""
    probs = batch_probs(logits)
    # An invalid label such as -100 must raise, not count as a wrong prediction.
    own = label_index(labels, probs)
    if own.is_cuda:
        probs.detach().gather(1, own)
    confidence, predicted = probs.max(1)
    return confidence, (predicted == labels).to(confidence.dtype)
