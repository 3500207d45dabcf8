"""Cross entropy with a confidence penalty."""

from calibrant.losses.log_probs import allowed, log_probs, take_label
from calibrant.losses.settings import SOURCES, Source, at_least, one_of
from calibrant.shapes import Labels, Logits, PerExample


def entropy(
    logits: Logits, labels: Labels, *, alpha: float = 0.1, form: Source = "paper"
) -> PerExample:
    r"""Cross entropy minus a multiple of the entropy of the prediction: a confidence penalty.

    $$\ell = -\log p_y - \alpha H(p), \qquad H(p) = -\sum_j p_j \log p_j$$

    Its minimiser solves $p_y = 1 / (1 + (k-1) e^{-1/(\alpha p_y)})$: at `alpha = 0.1` and 10
    classes that is 0.99959, so the usual alpha hardly limits confidence. `alpha = 0` is cross
    entropy. May be negative.

    Args:
        alpha: weight of the entropy in nats, at least 0.
        form: "paper" sums over the classes; "public_code" averages over them, which is the same as
            an alpha k times smaller.

    References:
        Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output Distributions,
            ICLR workshop 2017, arXiv:1701.06548
    """
    at_least("alpha", 0, alpha)
    one_of("form", form, SOURCES)
    log_p = log_probs(logits)
    # A masked class must add 0, not 0 * -inf.
    valid = allowed(log_p)
    negative_entropy = (log_p.exp() * log_p.where(valid, 0)).sum(1)
    if form == "public_code":
        negative_entropy = negative_entropy / valid.sum(1)
    return alpha * negative_entropy - take_label(log_p, labels)
