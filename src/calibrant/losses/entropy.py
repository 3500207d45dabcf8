"""Cross entropy with a reward for entropy."""

from calibrant.losses.log_probs import allowed, log_probs, of_label
from calibrant.losses.settings import SOURCES, Source, at_least, one_of
from calibrant.shapes import Labels, Logits, PerExample


def entropy(
    logits: Logits, labels: Labels, *, alpha: float = 0.1, form: Source = "paper"
) -> PerExample:
    r"""Cross entropy minus a share of the entropy of the prediction: a price on confidence.

    $$\ell = -\log p_y - \alpha H(p), \qquad H(p) = -\sum_j p_j \log p_j$$

    The minimiser over free logits solves $p_y = 1 / (1 + (k-1) e^{-1/(\alpha p_y)})$: at
    `alpha = 0.1` and 10 classes that is 0.99959, so the usual alpha hardly limits confidence.
    `alpha = 0` is cross entropy. May be negative.

    Args:
        logits: (n, k).
        labels: (n,).
        alpha: price of one nat, at least 0.
        form: "paper" sums over the classes; "public_code" averages over them, which is the same as
            an alpha k times smaller.

    References:
        Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions,
            ICLR workshop 2017, arXiv:1701.06548
    """
    at_least("alpha", 0, alpha)
    one_of("form", form, SOURCES)
    log_p = log_probs(logits)
    # A masked class adds 0, which zero times -inf is not.
    there = allowed(log_p)
    negative_entropy = (log_p.exp() * log_p.where(there, 0)).sum(1)
    if form == "public_code":
        negative_entropy = negative_entropy / there.sum(1)
    return alpha * negative_entropy - of_label(log_p, labels)
