"""Focal loss whose gamma depends on the example."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from scipy.special import lambertw

from calibrant.losses.focal import focal
from calibrant.losses.log_probs import log_probs, take_label
from calibrant.losses.settings import one_of
from calibrant.setting_errors import SettingError
from calibrant.shapes import Labels, Logits, PerExample

Rule = Literal["steps", "lambert"]
RULES = ("steps", "lambert")


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
