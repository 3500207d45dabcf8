"""Class-adaptive margins: an augmented Lagrangian on the logits."""

from typing import Literal

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import mean_over_allowed
from calibrant.losses.margin import margin_constraint
from calibrant.losses.penalties import PENALTIES, PerClass, checked_per_class
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.shapes import Labels, Logits, PerExample


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
    multipliers = checked_per_class("multipliers", multipliers, h)
    penalties = PENALTIES[penalty].value(h, multipliers, checked_per_class("rho", rho, h))
    return cross_entropy(logits, labels) + mean_over_allowed(penalties, logits)
