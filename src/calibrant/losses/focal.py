"""Cross entropy weighted by a power of how far the label's probability is from one."""

import torch
from torch import Tensor

from calibrant.losses.log_probs import NOTHING, log_probs, of_label, of_others, without_label
from calibrant.losses.settings import at_least, one_for_each
from calibrant.shapes import Labels, Logits, PerExample, Scalar

Gamma = float | Scalar | PerExample


def focal(
    logits: Logits, labels: Labels, *, gamma: Gamma = 3.0, detach_weight: bool = False
) -> PerExample:
    r"""Cross entropy that fades out on examples the model already gets right.

    $$\ell = -(1 - p_y)^\gamma \log p_y, \qquad
      \frac{\partial \ell}{\partial z_j} = u_\gamma(p_y)\,(p_j - 1[j = y]), \qquad
      u_\gamma(p) = (1 - p)^\gamma - \gamma\, p\, (1 - p)^{\gamma - 1} \log p$$

    `gamma = 0` is cross entropy. Not proper: where labels are random its minimiser is less
    confident than the truth at high confidence. For low $p_y$ the factor $u$ exceeds 1, so hard
    examples pull more than under cross entropy. The loss falls as gamma grows, whatever the
    logits: what learns gamma must not descend this loss.

    Args:
        logits: (n, k).
        labels: (n,).
        gamma: a number or one for each example, at least 0; a tensor may carry a gradient, and
            second derivatives exist.
        detach_weight: hold the weight constant, so that the gradient is
            $(1 - p_y)^\gamma (p - 1[\cdot = y])$ without the second term of u, as in the public
            code of Wang et al. 2021; gamma then gets no gradient either.

    References:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, arXiv:1708.02002
        Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
            arXiv:2002.09437
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
    """
    log_p = log_probs(logits)
    weight = torch.exp(_checked(gamma, log_p) * of_others(log_p, labels))
    return -(weight.detach() if detach_weight else weight) * of_label(log_p, labels)


def inverse_focal(logits: Logits, labels: Labels, *, gamma: Gamma = 2.0) -> PerExample:
    r"""Cross entropy that grows on examples the model already gets right.

    $$\ell = -(1 + p_y)^\gamma \log p_y$$

    The opposite of focal: it raises confidence, for models that have too little. `gamma = 0` is
    cross entropy. Above $\gamma = 1/W(1/e) = 3.591$ it is no longer decreasing in $p_y$ and
    pushes some examples away from their label.

    References:
        Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021
        Ghosh et al., AdaFocal, NeurIPS 2022, arXiv:2211.11838 (its branch for negative gamma)
    """
    log_p = log_probs(logits)
    own = of_label(log_p, labels)
    return -torch.exp(_checked(gamma, log_p) * own.exp().log1p()) * own


def dual_focal(logits: Logits, labels: Labels, *, gamma: Gamma = 5.0) -> PerExample:
    r"""Focal loss that looks at the gap to the next lower class, not only at the label.

    $$\ell = -(1 - p_y + p_j)^\gamma \log p_y, \qquad p_j = \max\{p_i : p_i < p_y\}$$

    with $p_j = 0$ where no class is below the label. The weight is larger than focal's, most where
    a rival is close behind, which counters focal's under-confidence. `gamma = 0` is cross entropy.
    The gradient flows through $p_j$. The loss jumps where another class overtakes the label, since
    j then changes.

    References:
        Tao et al., Dual Focal Loss for Calibration, ICML 2023, arXiv:2305.13665
    """
    log_p = log_probs(logits)
    own = of_label(log_p, labels)
    rival = log_p.masked_fill(log_p >= own[:, None], -torch.inf).amax(1)
    # 1 - p_y is the sum of the other classes; one of them is counted twice.
    others = without_label(log_p, labels, filling=NOTHING)
    summands = torch.cat([others, rival[:, None]], 1)
    return -torch.exp(_checked(gamma, log_p) * summands.logsumexp(1)) * own


def _checked(gamma: Gamma, log_p: Logits) -> Gamma:
    """Give gamma as it is, or as a tensor where and of the type the log-probabilities are."""
    at_least("gamma", 0, gamma, many=True)
    one_for_each("gamma", gamma, len(log_p), "examples")
    return gamma.to(log_p) if isinstance(gamma, Tensor) else gamma
