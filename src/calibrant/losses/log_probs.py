"""What losses are made of: log-probabilities of the label and of the rest, and the top class."""

import torch

from calibrant.checks import raised
from calibrant.shapes import Labels, Logits, PerExample


def log_probs(logits: Logits) -> Logits:
    """Log-softmax, in float32 for half precision; the gradient flows back to the half input."""
    if logits.shape[1] < 2:
        raise ValueError(f"need at least 2 classes, got logits of shape {tuple(logits.shape)}")
    return torch.log_softmax(raised(logits), 1)


def of_label(log_p: Logits, labels: Labels) -> PerExample:
    """Log-probability of each example's label; a label that is no class raises."""
    return log_p.gather(1, labels.long()[:, None])[:, 0]


def without_label(log_p: Logits, labels: Labels) -> Logits:
    """The same rows with the label's entry at -inf, which is probability zero."""
    return log_p.scatter(1, labels.long()[:, None], -torch.inf)


def of_others(log_p: Logits, labels: Labels) -> PerExample:
    """Log of 1 - p_y, summed over the other classes: exact where p_y rounds to 1."""
    return without_label(log_p, labels).logsumexp(1)


def batch_probs(logits: Logits) -> Logits:
    """Probabilities of a batch that is not empty, for statistics of it."""
    if not len(logits):
        raise ValueError("a statistic of the batch needs at least 1 example, got 0")
    return log_probs(logits).exp()


def top_class(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Confidence, with gradient, and correctness, 0 or 1 without."""
    probs = batch_probs(logits)
    # A label that is no class, such as -100, must not pass for a wrong prediction: this raises.
    of_label(probs, labels)
    confidence, predicted = probs.max(1)
    return confidence, (predicted == labels).to(confidence.dtype)
