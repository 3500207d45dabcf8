r"""The focal calibration map: from outputs trained on focal loss to probabilities.

Focal loss is $\varphi(p_y)$ with $\varphi(p) = -(1 - p)^\gamma \log p$. If softmax outputs p
minimise it under the true posterior q, then $q_i \propto 1 / |\varphi'(p_i)|$, which maps p
to q.

With $r(p) = -p \log p / (1 - p)$, between 0 and 1,

$$\log h(p) = -\log|\varphi'(p)| = \log p - \gamma \log(1 - p) - \log(1 + \gamma r(p)).$$

References:
    Komisarenko and Kull, Improving Calibration by Relating Focal Loss, Temperature Scaling, and
        Properness, ECAI 2024, arXiv:2408.11598.
    Charoenphakdee et al., On Focal Loss for Class-Posterior Probability Estimation, CVPR 2021,
        arXiv:2011.09172.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.checks import promote_dtype
from calibrant.shapes import Labels, Logits, PerExample

Values = Float[Tensor, "*any"]

# Below this 1 - p a short series for -log(p) / (1 - p) is exact to rounding.
NEAR_ONE = 1e-3
# Minus the log-probability that the inverse gives a masked class: its exponential is 0.
ABSENT = 1e4
# Steps of the two nested searches of the inverse; both converge in about ten.
STEPS = 60


def focal_map(log_probs: Logits, gamma: float | Float[Tensor, ""]) -> Logits:
    r"""Turn the outputs of a network trained on focal loss into probabilities.

    $$\Phi_\gamma(p)_i = h(p_i) / \textstyle\sum_j h(p_j)$$

    `gamma = 0` is the identity. For gamma >= 0 the order of the classes is preserved. Confidence
    increases if it is at least 1/2, or with at most three classes; in general only above
    `raising_threshold(gamma)`, and far below that it decreases.

    Finite in float32 for any finite logits, since it is computed in log space. Classes at -inf are
    ignored and stay at -inf.

    Args:
        log_probs: (n, k) log-probabilities or logits.
        gamma: above -1. Below 0 the map is not monotone for a probability close to 1.

    Examples:
        >>> p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
        >>> focal_map(p.log(), 2.0).exp().round(decimals=4).tolist()
        [[0.9197, 0.0546, 0.0257]]
    """
    check_gamma(gamma)
    log_p = torch.log_softmax(promote_dtype(log_probs), 1)
    return torch.log_softmax(log_h(log_p, log_misses(log_p), gamma), 1)


def check_gamma(gamma: float | Tensor) -> None:
    """Refuse a gamma for which the map is not defined."""
    value = float(gamma.detach() if isinstance(gamma, Tensor) else gamma)
    if not -1 < value < math.inf:
        raise ValueError(f"gamma must be above -1 and finite, got {value}")


def log_misses(log_p: Logits) -> Logits:
    """Log(1 - p) of every class, (n, k).

    Only the top class can exceed 1/2: there 1 - p is the sum of the others, which is accurate
    where p rounds to 1.
    """
    top = log_p.argmax(1, keepdim=True)
    own = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, top, value=True)
    # Finite also if no other class is allowed.
    others = log_p.masked_fill(own, -1e30).logsumexp(1, keepdim=True)
    # Filled before the log: a NaN gradient would survive `where`.
    below = torch.log1p(-log_p.masked_fill(own, -1.0).exp())
    return torch.where(own, others, below)


def log_h(log_p: Values, log_miss: Values, gamma: float | Tensor) -> Values:
    """Log of the unnormalised map, see the module."""
    return log_p - gamma * log_miss - torch.log1p(gamma * entropy_ratio(log_p, log_miss))


def entropy_ratio(log_p: Values, log_miss: Values) -> Values:
    """The ratio -p log(p) / (1 - p), from 0 at p = 0 to 1 at p = 1."""
    miss = log_miss.exp()
    near = miss < NEAR_ONE
    series = 1 + miss * (1 / 2 + miss * (1 / 3 + miss * (1 / 4 + miss / 5)))
    # Probability zero has ratio zero; -inf times zero would be NaN.
    direct = -log_p.clamp_min(torch.finfo(log_p.dtype).min) / torch.where(near, 1.0, miss)
    return log_p.exp() * torch.where(near, series, direct)


def inverse_focal_map(log_probs: Logits, gamma: float) -> Logits:
    r"""The outputs p that minimise focal loss when the true probabilities are q.

    Solves `focal_map(p) = q` for gamma >= 0, where the map is one-to-one: the log-odds of every
    class for $\log h(p_i) = \log q_i + c$, and c so that the probabilities sum to 1, both by
    bracketed Newton steps in float64.

    Args:
        log_probs: (n, k) log-probabilities q, or logits.
        gamma: 0 or more.
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must be at least 0 to be inverted, got {gamma}")
    given = promote_dtype(log_probs)
    log_q = torch.log_softmax(given.double(), 1)
    if gamma == 0 or log_q.shape[1] == 1:
        return log_q.to(given.dtype)
    masked = log_q.isneginf()
    log_q = log_q.masked_fill(masked, -ABSENT)
    top = log_q.argmax(1, keepdim=True)
    first = torch.zeros_like(log_q, dtype=torch.bool).scatter(1, top, value=True)
    # The top class has at least 1/k and the second at most 1/2: that brackets the level c.
    highest = log_q.topk(2, dim=1).values
    least = log_q.new_tensor(-math.log(max(log_q.shape[1] - 1, 1)))
    low = log_h(*_both(least), gamma) - highest[:, :1]
    high = log_h(*_both(torch.zeros_like(least)), gamma) - highest[:, 1:]
    odds = log_q - log_misses(log_q)

    def excess(level: Tensor) -> tuple[Tensor, Tensor]:
        """Log of the others' sum minus log(1 - p) of the top class, and the derivative."""
        nonlocal odds
        odds = _odds_of(log_q + level, gamma, odds)
        log_p, log_miss = _both(odds)
        rest = log_p.masked_fill(first, -torch.inf).logsumexp(1, keepdim=True)
        # d log-odds / dc is one over the derivative of log h.
        rate = 1 / _log_h_derivative(log_p, log_miss, gamma)
        share = torch.where(first, 0.0, (log_p - rest).exp())
        rise = (share * log_miss.exp() * rate).sum(1, keepdim=True)
        rise = rise + (log_p.exp() * rate).gather(1, top)
        return rest - log_miss.gather(1, top), rise

    level = _root(excess, (low + high) / 2, low, high)
    log_p = _both(_odds_of(log_q + level, gamma, odds))[0].masked_fill(masked, -torch.inf)
    return torch.log_softmax(log_p, 1).to(given.dtype)


def _root(
    value_and_derivative: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """Root of an increasing function: Newton's method, with bisection outside the bracket."""
    at = torch.minimum(torch.maximum(start, low), high)
    for _ in range(STEPS):
        value, derivative = value_and_derivative(at)
        low, high = torch.where(value < 0, at, low), torch.where(value > 0, at, high)
        step = value / derivative
        # Rounding would bisect the bracket for ever.
        settled = step.abs() <= 1e-14 * (1 + at.abs())
        new = torch.where(settled, at, at - step)
        inside = (new >= low) & (new <= high)
        # The error after a Newton step is about the square of the step.
        done = settled | (inside & (step.abs() <= 1e-9 * (1 + at.abs())))
        at = torch.where(inside, new, (low + high) / 2)
        if bool(done.all()):
            break
    return at


def _both(odds: Values) -> tuple[Values, Values]:
    """Log(p) and log(1 - p) of log-odds."""
    return torch.nn.functional.logsigmoid(odds), torch.nn.functional.logsigmoid(-odds)


def _log_h_derivative(log_p: Values, log_miss: Values, gamma: float) -> Values:
    """Derivative of log h along the log-odds."""
    p, miss = log_p.exp(), log_miss.exp()
    ratio = entropy_ratio(log_p, log_miss)
    # d log p = 1 - p, d log(1 - p) = -p, and r' = -p - p log(p) / (1 - p) = r - p.
    return miss + gamma * p - gamma * (ratio - p) / (1 + gamma * ratio)


def _odds_of(target: Values, gamma: float, start: Values) -> Values:
    """Log-odds at which log h equals the target."""
    # log h lies within log(1 + gamma) below log p - gamma log(1 - p), whose two terms lie within
    # log 2 of straight lines on either side of even odds.
    low = target - gamma * math.log(2)
    high = target + math.log1p(gamma) + math.log(2)
    low, high = (torch.where(end > 0, end / gamma, end) for end in (low, high))

    def excess(odds: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_miss = _both(odds)
        derivative = _log_h_derivative(log_p, log_miss, gamma)
        return log_h(log_p, log_miss, gamma) - target, derivative

    return _root(excess, start, low, high)


def focal_proper_loss(log_probs: Logits, labels: Labels, *, gamma: float) -> PerExample:
    r"""The proper part of focal loss: $\ell(q, y) = \varphi(\Phi_\gamma^{-1}(q)_y)$.

    Focal loss is not proper: its minimiser is not the true posterior. It is this strictly proper
    loss of the mapped softmax, $\varphi(p_y) = \ell(\Phi_\gamma(p), y)$, so training on focal loss
    is training on a proper loss with a fixed last layer.
    """
    log_p = inverse_focal_map(log_probs, gamma)
    own = log_p.gather(1, labels[:, None])[:, 0]
    log_miss = log_misses(log_p).gather(1, labels[:, None])[:, 0]
    return -own * (gamma * log_miss).exp()


def raising_threshold(gamma: float) -> float:
    r"""Confidence above which the focal map always increases it, for gamma > 0.

    The positive root of $u(p) = (1 - p)^\gamma (1 + \gamma r(p)) = 1$, always below 1/2: 0.4215 for
    gamma 0.5, 1/e for 1, 0.1968 for 5.
    """
    from scipy.optimize import brentq

    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma must be above 0, got {gamma}")

    def log_u(p: float) -> float:
        ratio = -p * math.log(p) / (1 - p)
        return gamma * math.log1p(-p) + math.log1p(gamma * ratio)

    # u = 1 also at p = 0; it increases to a maximum and then decreases.
    low = 0.5
    while log_u(low) <= 0:
        low /= 2
    return float(brentq(log_u, low, 0.5, xtol=1e-14)) if low < 0.5 else 0.5
