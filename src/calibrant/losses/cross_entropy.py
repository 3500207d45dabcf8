"""Cross entropy, with smoothed labels or a confidence penalty, and the Brier score."""

import torch

from calibrant.checks import promote_dtype
from calibrant.losses.log_probs import allowed, log_probs, mask_label, mean_over_allowed, take_label
from calibrant.losses.settings import SOURCES, Source, at_least, fraction, one_of
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


def logit_norm(
    logits: Logits, labels: Labels, *, alpha: float = 0.05, norm: float = 1.0
) -> PerExample:
    r"""Cross entropy plus the norm of the logits, which limits confidence.

    $$\ell = -\log p_y + \alpha \lVert z \rVert_p$$

    With `norm = 1` and $\alpha < (k-1)/k$ its minimiser has $p_y = 1 - \alpha$ exactly. Adding a
    constant to all logits changes it: their level (the median, for p = 1) is pulled to zero. At
    z = 0, where the norm is not differentiable, its gradient is 0. `alpha = 0` is cross entropy.

    Args:
        alpha: weight of the norm, at least 0.
        norm: p, at least 1; `math.inf` is the largest absolute logit.

    References:
        Joo and Chung, Revisiting Explicit Regularization in Neural Networks for Well-Calibrated
            Predictive Uncertainty, 2020, arXiv:2006.06399
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
    """
    at_least("alpha", 0, alpha)
    at_least("norm", 1, norm, infinite=True)
    logits = promote_dtype(logits)
    # Powers of huge or tiny logits overflow or underflow: divide by the largest first, detached,
    # because the gradient of a norm does not depend on the scale.
    valid = logits.where(allowed(logits), 0)
    largest = valid.detach().abs().amax(1, keepdim=True)
    scale = largest.where(largest > 0, 1)
    size: PerExample = scale[:, 0] * torch.linalg.vector_norm(valid / scale, norm, dim=1)
    return cross_entropy(logits, labels) + alpha * size


def brier(logits: Logits, labels: Labels) -> PerExample:
    r"""Squared distance between the probabilities and the label: proper, and bounded.

    $$\ell = \sum_j (p_j - 1[j = y])^2 = \Big(\sum_{j \ne y} p_j\Big)^2 + \sum_{j \ne y} p_j^2$$

    Lies in [0, 2]. The gradient vanishes for confident mistakes as well as for confident correct
    predictions, so training from confident mistakes is slow. The second form is the one computed:
    it has no cancellation near $p_y = 1$.

    References:
        Brier, Verification of Forecasts Expressed in Terms of Probability, 1950
        Mukhoti et al., NeurIPS 2020, arXiv:2002.09437 (as a loss for calibration)
    """
    others = mask_label(log_probs(logits), labels).exp()
    return others.sum(1) ** 2 + (others**2).sum(1)
