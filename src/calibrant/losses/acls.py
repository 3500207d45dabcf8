"""Adaptive and conditional label smoothing (ACLS)."""

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed
from calibrant.losses.settings import at_least
from calibrant.shapes import Labels, Logits, PerExample


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
