"""Margins of logits, the margin constraint, and margin-based label smoothing."""

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed, mask_label, mean_over_allowed, take_label
from calibrant.losses.penalties import PerClass, checked_per_class
from calibrant.losses.settings import at_least, boolean, positive
from calibrant.shapes import Labels, Logits, PerExample


def margin(logits: Logits, labels: Labels) -> PerExample:
    r"""Margin of the label, $m = z_y - \max_{j \ne y} z_j$: negative for wrong predictions.

    Classes that tie for the maximum share its gradient.
    """
    z = promote_dtype(logits)
    return take_label(z, labels) - mask_label(z, labels).amax(1)


def margin_constraint(logits: Logits, *, margin: float, normalize: bool = True) -> Logits:
    r"""Violation of the constraint that each logit lies within a margin of the largest, (n, k).

    $$h_{ij} = \frac{d_{ij} - m}{m}, \qquad d_{ij} = \max_l z_{il} - z_{ij}$$

    Positive where violated; -1 for the largest logit. With `normalize=False` there is no division,
    and the largest logit has -m. Classes that tie for the maximum share its gradient. A masked
    class violates nothing: it has the value of the largest logit, without gradient.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """
    boolean("normalize", normalize)
    if normalize:
        positive("margin", margin)
    else:
        at_least("margin", 0, margin, infinite=True)
    z = promote_dtype(logits)
    excess = (z.amax(1, keepdim=True) - z).where(allowed(z), 0) - margin
    return excess / margin if normalize else excess


def margin_smoothing(
    logits: Logits, labels: Labels, *, margin: float = 10.0, alpha: PerClass = 0.1
) -> PerExample:
    r"""Cross entropy plus a penalty on logits below the largest by more than a margin (MbLS).

    $$\ell = -\log p_y + \frac1k \sum_j \alpha_j \max(0, \max_l z_l - z_j - m)$$

    Label smoothing that acts only beyond the margin: m = 0 is close to label smoothing, an
    infinite m or `alpha = 0` is cross entropy. The mean is over all k classes, although the largest
    logit adds nothing.

    Args:
        margin: m, at least 0.
        alpha: penalty weight, a scalar or one per class, at least 0. One per class, updated
            between epochs, is the heuristic rule of Liu et al. 2023 (CALS-HR).

    References:
        Liu et al., The Devil is in the Margin, CVPR 2022, arXiv:2111.15430
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """
    at_least("alpha", 0, alpha, many=True)
    logits = promote_dtype(logits)
    excess = margin_constraint(logits, margin=margin, normalize=False).relu()
    weights = checked_per_class("alpha", alpha, excess)
    return cross_entropy(logits, labels) + mean_over_allowed(weights * excess, logits)
