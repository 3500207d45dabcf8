"""Focal losses: cross entropy weighted by a power of a function of the label's probability."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from scipy.special import lambertw

from calibrant.losses.log_probs import LOG_ZERO, log_one_minus_p, log_probs, mask_label, take_label
from calibrant.losses.settings import at_least, broadcastable, one_of
from calibrant.setting_errors import SettingError
from calibrant.shapes import Labels, Logits, PerExample, Scalar

Gamma = float | Scalar | PerExample
Rule = Literal["steps", "lambert"]
RULES = ("steps", "lambert")


def focal(
    logits: Logits, labels: Labels, *, gamma: Gamma = 3.0, detach_weight: bool = False
) -> PerExample:
    r"""Cross entropy with less weight on examples the model already classifies well.

    $$\ell = -(1 - p_y)^\gamma \log p_y, \qquad
      \frac{\partial \ell}{\partial z_j} = u_\gamma(p_y)\,(p_j - 1[j = y]), \qquad
      u_\gamma(p) = (1 - p)^\gamma - \gamma\, p\, (1 - p)^{\gamma - 1} \log p$$

    `gamma = 0` is cross entropy. Not proper: where labels are random its minimiser is less
    confident than the truth at high confidence. For low $p_y$ the factor $u$ exceeds 1, so hard
    examples have a larger gradient than under cross entropy. The loss falls as gamma grows for any
    logits, so gamma must not be learnt by minimising this loss.

    Args:
        gamma: a scalar or one per example, at least 0; a tensor may require a gradient, and
            second derivatives exist.
        detach_weight: treat the weight as constant, so that the gradient is
            $(1 - p_y)^\gamma (p - 1[\cdot = y])$ without the second term of u, as in the public
            code of Wang et al. 2021; gamma then gets no gradient either.

    References:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, arXiv:1708.02002
        Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
            arXiv:2002.09437
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
    """
    log_p = log_probs(logits)
    weight = torch.exp(_checked(gamma, log_p) * log_one_minus_p(log_p, labels))
    return -(weight.detach() if detach_weight else weight) * take_label(log_p, labels)


def inverse_focal(logits: Logits, labels: Labels, *, gamma: Gamma = 2.0) -> PerExample:
    r"""Cross entropy with more weight on examples the model already classifies well.

    $$\ell = -(1 + p_y)^\gamma \log p_y$$

    The opposite of focal: it raises confidence, for under-confident models. `gamma = 0` is cross
    entropy. Above $\gamma = 1/W(1/e) = 3.591$ it is no longer decreasing in $p_y$ and lowers the
    label's probability of some examples.

    References:
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
        Ghosh et al., AdaFocal, NeurIPS 2022, arXiv:2211.11838 (its branch for negative gamma)
    """
    log_p = log_probs(logits)
    label = take_label(log_p, labels)
    return -torch.exp(_checked(gamma, log_p) * label.exp().log1p()) * label


def dual_focal(logits: Logits, labels: Labels, *, gamma: Gamma = 5.0) -> PerExample:
    r"""Focal loss whose weight also depends on the most likely class below the label.

    $$\ell = -(1 - p_y + p_j)^\gamma \log p_y, \qquad p_j = \max\{p_i : p_i < p_y\}$$

    with $p_j = 0$ where no class is below the label. The weight is larger than focal's, most where
    $p_j$ is close to $p_y$, which counters focal's under-confidence. `gamma = 0` is cross entropy.
    $p_j$ has a gradient. The loss jumps where another class overtakes the label and j changes.

    References:
        Tao et al., Dual Focal Loss for Calibration, ICML 2023, arXiv:2305.13665
    """
    log_p = log_probs(logits)
    label = take_label(log_p, labels)
    next_lower = log_p.masked_fill(log_p >= label[:, None], -torch.inf).amax(1)
    # 1 - p_y + p_j: the sum over the other classes, with class j counted twice.
    others = mask_label(log_p, labels, fill=LOG_ZERO)
    summands = torch.cat([others, next_lower[:, None]], 1)
    return -torch.exp(_checked(gamma, log_p) * summands.logsumexp(1)) * label


def flsd(
    logits: Logits,
    labels: Labels,
    *,
    rule: Rule = "steps",
    thresholds: Sequence[float] = (0.2, 0.25),
) -> PerExample:
    r"""Focal loss with a larger gamma for examples whose label has low probability (FLSD).

    $$\ell = -(1 - p_y)^{\gamma(p_y)} \log p_y, \qquad
      \gamma(p) = \gamma^*(\min\{t : t > p\}),
      \text{ or } \gamma^*(\max t) \text{ if } p \ge \max t$$

    over the thresholds t, where $\gamma^*(t)$ is `balancing_gamma(t)`: the gamma at which focal
    loss and cross entropy have equal gradients at $p_y = t$. Below its threshold an example has a
    larger gradient than under cross entropy, above it a smaller one. Gamma is chosen from $p_y$
    without gradient, so the loss jumps at the thresholds and its gradient ignores the jumps.

    Args:
        rule: "steps" rounds each $\gamma^*$ to an integer, which for the default thresholds is
            FLSD-53 of the paper: 5 below 0.2, else 3. "lambert" does not round: 4.8506 and 3.0702.
        thresholds: increasing, each in (0, 0.5]; $\gamma^*(0.5) = 0$, and above 0.5 there is none.

    References:
        Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
            arXiv:2002.09437
    """
    one_of("rule", rule, RULES)
    if not thresholds or list(thresholds) != sorted(set(thresholds)):
        raise SettingError(
            "thresholds", f"must increase and be at least one, got {list(thresholds)}"
        )
    choices = [balancing_gamma(threshold) for threshold in thresholds]
    if rule == "steps":
        choices = [float(round(choice)) for choice in choices]
    with torch.no_grad():
        probs = take_label(log_probs(logits), labels).exp()
        edges = torch.tensor(thresholds[:-1], dtype=probs.dtype, device=probs.device)
        number = torch.bucketize(probs, edges, right=True)
        gamma = torch.tensor(choices, dtype=probs.dtype, device=probs.device)[number]
    return focal(logits, labels, gamma=gamma)


def balancing_gamma(threshold: float) -> float:
    r"""Return the gamma at which focal loss and cross entropy have equal gradients at $p_y = t$.

    $$u_\gamma(t) = (1 - t)^\gamma - \gamma\, t\, (1 - t)^{\gamma - 1} \log t = 1
      \quad\Rightarrow\quad
      \gamma^* = \frac ab + \frac{1}{\log a}
      W_{-1}\!\Big(\!-\frac{a^{1 - a/b} \log a}{b}\Big), \quad a = 1 - t,\; b = t \log t$$

    for t in (0, 0.5]; gamma = 0 always solves it too, and at 0.5 the two solutions meet.

    >>> [round(balancing_gamma(t), 4) for t in (0.2, 0.25, 0.3)]
    [4.8506, 3.0702, 1.9572]
    """
    if not 0 < threshold <= 0.5:
        raise SettingError("thresholds", f"must lie in (0, 0.5], got {threshold:g}")
    log_a = math.log1p(-threshold)
    b = threshold * math.log(threshold)
    ratio = (1 - threshold) / b
    lower = lambertw(-math.exp((1 - ratio) * log_a) * log_a / b, -1).real
    # At 0.5 the result is exactly zero; rounding may put it slightly below.
    return max(0.0, float(ratio + lower / log_a))


def _checked(gamma: Gamma, log_p: Logits) -> Gamma:
    """Check gamma; a tensor gets the device and dtype of the log-probabilities."""
    at_least("gamma", 0, gamma, many=True)
    return broadcastable("gamma", gamma, log_p, "examples")
