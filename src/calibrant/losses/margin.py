"""Margins of logits, and losses that penalise logits beyond a margin."""

from typing import Literal

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed, mask_label, mean_over_allowed, take_label
from calibrant.losses.penalties import PENALTIES, PerClass
from calibrant.losses.settings import at_least, boolean, broadcastable, one_of, positive
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
    weights = broadcastable("alpha", alpha, excess, "classes")
    return cross_entropy(logits, labels) + mean_over_allowed(weights * excess, logits)


def cals(
    logits: Logits,
    labels: Labels,
    *,
    margin: float = 10.0,
    multipliers: PerClass = 1e-6,
    rho: PerClass = 1.0,
    penalty: Literal["phr", "p2", "p3"] = "phr",
    normalize: bool = True,
) -> PerExample:
    r"""Cross entropy plus a penalty, weighted per class, on logits too far below the largest.

    $$\ell = -\log p_y + \frac1k \sum_j P(h_j, \lambda_j, \rho_j), \qquad
      h_j = \frac{\max_l z_l - z_j - m}{m}$$

    The loss for fixed multipliers; `methods.CalsAlm` updates them between epochs to the mean of
    $P'(h_j, \lambda_j, \rho_j)$ on held-out examples. As in the authors' code, the penalty is the
    mean over classes, not the sum. With multipliers 0 and a margin above every gap it is cross
    entropy; "phr" and "p2" penalise gaps beyond the margin even when the multipliers are 0.

    Args:
        margin: m, above 0 (0 is allowed without `normalize`).
        multipliers: lambda, a scalar or one per class, at least 0.
        rho: a scalar or one per class, above 0.
        penalty: a name in `PENALTIES`.
        normalize: divide the constraint by the margin.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """
    at_least("multipliers", 0, multipliers, many=True)
    positive("rho", rho, many=True)
    one_of("penalty", penalty, PENALTIES)
    logits = promote_dtype(logits)
    h = margin_constraint(logits, margin=margin, normalize=normalize)
    multipliers = broadcastable("multipliers", multipliers, h, "classes")
    penalties = PENALTIES[penalty].value(h, multipliers, broadcastable("rho", rho, h, "classes"))
    return cross_entropy(logits, labels) + mean_over_allowed(penalties, logits)


def acls(
    logits: Logits,
    labels: Labels,
    *,
    margin: float = 10.0,
    alpha: float = 0.1,
    top: float = 1.0,
    rest: float = 0.1,
) -> PerExample:
    r"""Cross entropy plus squared penalties on a top logit too high and other logits too low.

    $$\ell = -\log p_y + \alpha \Big[ \lambda_+ \max(0, z_t - m)^2 + \frac{\lambda_-}{k - 1}
      \sum_{j \ne t} \max(0, \bar z_t - z_j - m)^2 \Big], \qquad t = \arg\max_j z_j$$

    where $\bar z_t$ is $z_t$ without gradient. The first term depends on the top logit itself, so
    adding a constant to all logits changes the loss: it keeps the top logit near or below m.
    Because of $\bar z_t$ the gradient differs from finite differences by design. Logits that tie
    for the maximum all count as top. `alpha = 0` is cross entropy.

    Args:
        margin: m, at least 0.
        alpha: weight of the whole penalty.
        top: lambda plus, weight of the top logit.
        rest: lambda minus, weight of the other logits.

    References:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for Network Calibration,
            ICCV 2023, arXiv:2308.11911
    """
    at_least("margin", 0, margin, infinite=True)
    for name, value in (("alpha", alpha), ("top", top), ("rest", rest)):
        at_least(name, 0, value)
    z = promote_dtype(logits)
    highest = z.detach().amax(1, keepdim=True)
    is_top, valid = z == highest, allowed(z)
    too_high = (z - margin).relu().where(is_top, 0) ** 2
    too_low = (highest - z - margin).relu().where(valid & ~is_top, 0) ** 2
    others = (valid.sum(1) - 1).clamp_min(1)
    penalty = top * too_high.sum(1) + rest * too_low.sum(1) / others
    return cross_entropy(z, labels) + alpha * penalty
