"""Cross entropy with a price on the size of the logits."""

import torch

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed
from calibrant.losses.settings import at_least
from calibrant.shapes import Labels, Logits, PerExample


def logit_norm(
    logits: Logits, labels: Labels, *, alpha: float = 0.05, norm: float = 1.0
) -> PerExample:
    r"""Cross entropy plus the norm of the logits: caps how far they, and confidence, can grow.

    $$\ell = -\log p_y + \alpha \lVert z \rVert_p$$

    With `norm = 1` and $\alpha < (k-1)/k$ the minimiser over free logits has $p_y = 1 - \alpha$
    exactly. Not invariant to a shift of the logits: it also pins their level (their median, for
    p = 1). At z = 0, where the norm has a corner, its gradient is taken as 0. `alpha = 0` is cross
    entropy.

    Args:
        logits: (n, k).
        labels: (n,).
        alpha: price of one unit of norm, at least 0.
        norm: p, at least 1; `math.inf` is the largest absolute logit.

    References:
        Joo and Chung, Revisiting Explicit Regularization in Neural Networks for Well-Calibrated
            Predictive Uncertainty, 2020, arXiv:2006.06399
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
    """
    at_least("alpha", 0, alpha)
    at_least("norm", 1, norm, infinite=True)
    logits = promote_dtype(logits)
    # Powers of huge or tiny logits leave the range of floats. A norm scales, so take out the
    # largest; as a constant, because the gradient of a norm does not depend on the scale.
    kept = logits.where(allowed(logits), 0)
    largest = kept.detach().abs().amax(1, keepdim=True)
    scale = largest.where(largest > 0, 1)
    size: PerExample = scale[:, 0] * torch.linalg.vector_norm(kept / scale, norm, dim=1)
    return cross_entropy(logits, labels) + alpha * size
