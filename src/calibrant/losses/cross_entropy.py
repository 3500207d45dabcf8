"""Cross entropy with hard and with smoothed labels."""

from calibrant.losses.log_probs import allowed, log_probs, mask_label, mean_over_allowed, take_label
from calibrant.losses.settings import SOURCES, Source, fraction, one_of
from calibrant.shapes import Labels, Logits, PerExample


def cross_entropy(logits: Logits, labels: Labels) -> PerExample:
    r"""Negative log-likelihood of the label: a strictly proper scoring rule.

    $$\ell(z, y) = -\log p_y, \qquad p = \mathrm{softmax}(z)$$

    Equal to `torch.nn.functional.cross_entropy(..., reduction="none")`, but there is no silent
    `ignore_index`: drop ignored positions with `calibrant.shapes.flatten_dense`.
    """
    return -take_label(log_probs(logits), labels)


def label_smoothing(
    logits: Logits, labels: Labels, *, alpha: float = 0.05, form: Source = "paper"
) -> PerExample:
    r"""Cross entropy against a label that gives some probability to the other classes.

    $$\ell = (1 - \alpha)(-\log p_y) + \frac{\alpha}{k} \sum_j -\log p_j$$

    Its minimiser has $p_y = 1 - \alpha (k - 1) / k$: under-confident where the label is certain.
    `alpha = 0` is cross entropy. Where classes are masked, k counts the others, and masked classes
    get no probability.

    Args:
        alpha: probability taken from the label, in [0, 1].
        form: "paper" spreads it over all k classes, as torch does; "public_code", found in code
            of later papers, over the k - 1 other classes, so that the minimiser has
            $p_y = 1 - \alpha$.

    References:
        Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, arXiv:1512.00567
        Mueller et al., When Does Label Smoothing Help?, NeurIPS 2019, arXiv:1906.02629
    """
    fraction("alpha", alpha)
    one_of("form", form, SOURCES)
    log_p = log_probs(logits)
    if form == "public_code":
        others = mask_label(log_p, labels)
        valid = allowed(others)
        spread = others.where(valid, 0).sum(1) / valid.sum(1).clamp_min(1)
    else:
        spread = mean_over_allowed(log_p, log_p)
    return -(1 - alpha) * take_label(log_p, labels) - alpha * spread
