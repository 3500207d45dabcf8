"""How far each logit lies below the largest one, as a constraint and as a penalty."""

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed, of_label, over_allowed, without_label
from calibrant.losses.penalties import PerClass, checked_per_class
from calibrant.losses.settings import at_least, flag, positive
from calibrant.shapes import Labels, Logits, PerExample


def margin(logits: Logits, labels: Labels) -> PerExample:
    r"""By how much the label's logit leads: $m = z_y - \max_{j \ne y} z_j$, below 0 where wrong.

    Classes that share the maximum share its gradient.
    """
    z = promote_dtype(logits)
    return of_label(z, labels) - without_label(z, labels).amax(1)


def margin_constraint(logits: Logits, *, margin: float, normalize: bool = True) -> Logits:
    r"""By how much each logit breaks the rule to lie within a margin of the largest: (n, k).

    $$h_{ij} = \frac{d_{ij} - m}{m}, \qquad d_{ij} = \max_l z_{il} - z_{ij}$$

    Positive where broken; the largest logit always has -1. With `normalize=False` there is no
    division, and the largest logit has -m. Classes that share the maximum share its gradient. A
    masked class breaks nothing: it has the value of the largest logit, without a gradient.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """
    flag("normalize", normalize)
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
    r"""Cross entropy plus what each logit lies below the largest by more than a margin (MbLS).

    $$\ell = -\log p_y + \frac1k \sum_j \alpha_j \max(0, \max_l z_l - z_j - m)$$

    Label smoothing that starts only beyond the margin: m = 0 is close to label smoothing, an
    infinite m or `alpha = 0` is cross entropy. The mean is over all k classes, though the largest
    never adds anything.

    Args:
        logits: (n, k).
        labels: (n,).
        margin: m, at least 0.
        alpha: a number or one for each class, at least 0. One for each class, moved between
            epochs, is the heuristic rule of Liu et al. 2023 (CALS-HR).

    References:
        Liu et al., The Devil is in the Margin, CVPR 2022, arXiv:2111.15430
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """
    at_least("alpha", 0, alpha, many=True)
    logits = promote_dtype(logits)
    excess = margin_constraint(logits, margin=margin, normalize=False).relu()
    weights = checked_per_class("alpha", alpha, excess)
    return cross_entropy(logits, labels) + over_allowed(weights * excess, logits)
