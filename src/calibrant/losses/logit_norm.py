"""Cross entropy with a penalty on the norm of the logits."""

import torch

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed
from calibrant.losses.settings import at_least
from calibrant.shapes import Labels, Logits, PerExample


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
