"""Predictions judged by a distribution over labels instead of by one label."""

from typing import Any

from calibrant import checks
from calibrant.predictions import Predictions


def judged_by(predictions: Predictions, posterior: Any) -> Predictions:
    r"""Repeat each example once for each class that it may be, weighted by how likely that is.

    Every weighted metric of the result is its expectation over labels drawn from the posterior:
    accuracy is the mean of $\pi_{\hat y}$, the log score is the cross entropy
    $-\sum_c \pi_c \log p_c$, and in a bin confidence meets the mean true probability of what was
    predicted. Groups are the examples (or what was given), so that intervals resample those.

    Args:
        predictions: n examples; their own labels play no part.
        posterior: (n, k) true or human class probabilities; rows sum to 1 within 1e-3.

    Examples:
        >>> from calibrant import metrics
        >>> p = Predictions.from_probs([[0.7, 0.3]], [0])
        >>> round(metrics.accuracy(judged_by(p, [[0.6, 0.4]])), 6)
        0.6
    """
    share = checks.as_scores("posterior", posterior).cpu().double()
    expected = (len(predictions), predictions.classes)
    if tuple(share.shape) != expected:
        raise ValueError(
            f"posterior must be {expected}, as the predictions, got {tuple(share.shape)}"
        )
    checks.check_probs(share, tolerance=1e-3)
    share = share / share.sum(1, keepdim=True)
    if predictions.weights is not None:
        share = share * predictions.weights[:, None]
    example, label = share.nonzero(as_tuple=True)
    # The repeated rows in their own form: a probability on a bin's edge stays there.
    repeated = predictions.take(example).relabelled(label).reweighted(share[example, label])
    groups = example if predictions.groups is None else predictions.groups[example]
    return Predictions.__new__(Predictions)._fill(
        repeated._scores,
        repeated.labels,
        repeated.weights,
        groups,
        repeated.class_names,
        repeated.rows,
    )
