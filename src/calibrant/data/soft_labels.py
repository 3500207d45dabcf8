"""Evaluate predictions against a distribution over labels instead of one label."""

from typing import Any

from calibrant import checks
from calibrant.predictions import Predictions


def with_soft_labels(predictions: Predictions, posterior: Any) -> Predictions:
    r"""Repeat each example once per class of positive probability, weighted by that probability.

    Every weighted metric of the result is its expectation over labels drawn from the posterior:
    accuracy is the mean of $\pi_{\hat y}$, the log score is the cross entropy
    $-\sum_c \pi_c \log p_c$, and in a bin confidence is compared with the mean true probability of
    the predicted class. Groups are the examples (or the given groups), so that intervals resample
    those.

    Args:
        predictions: n examples; their own labels are not used.
        posterior: (n, k) true or human class probabilities, each summing to 1 within 1e-3.

    Examples:
        >>> from calibrant import metrics
        >>> p = Predictions.from_probs([[0.7, 0.3]], [0])
        >>> round(metrics.accuracy(with_soft_labels(p, [[0.6, 0.4]])), 6)
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
    # Scores are copied, not recomputed: a probability on a bin edge stays there.
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
