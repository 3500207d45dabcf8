"""The Brier score as a loss."""

from calibrant.losses.log_probs import log_probs, mask_label
from calibrant.shapes import Labels, Logits, PerExample


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
