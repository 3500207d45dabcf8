"""Label smoothing that adapts to the logits and acts only where they are too far apart."""

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
    r"""Cross entropy plus squares of how far the top logit is too high and the rest too low.

    $$\ell = -\log p_y + \alpha \Big[ \lambda_+ \max(0, z_t - m)^2 + \frac{\lambda_-}{k - 1}
      \sum_{j \ne t} \max(0, \bar z_t - z_j - m)^2 \Big], \qquad t = \arg\max_j z_j$$

    where $\bar z_t$ is $z_t$ as a constant. The first term sees the top logit itself, so the loss
    is not invariant to a shift of the logits: it holds the top logit near or below m. Because of
    the constant the gradient is not that of any function of the logits: finite differences
    disagree with it by design. Logits that share the maximum all count as top. `alpha = 0` is
    cross entropy.

    Args:
        logits: (n, k).
        labels: (n,).
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
    is_top, there = z == highest, allowed(z)
    too_high = (z - margin).relu().where(is_top, 0) ** 2
    too_low = (highest - z - margin).relu().where(there & ~is_top, 0) ** 2
    others = (there.sum(1) - 1).clamp_min(1)
    penalty = top * too_high.sum(1) + rest * too_low.sum(1) / others
    return cross_entropy(z, labels) + alpha * penalty
