"""Smooth ECE (SECE): a differentiable kernel estimate of the calibration error."""

import math
from typing import Literal

import torch
from torch import Tensor

from calibrant.losses.log_probs import confidence_and_correct
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.shapes import Labels, Logits, PerExample, Scalar

Form = Literal["points", "leave_one_out", "grid"]
FORMS = ("points", "leave_one_out", "grid")
# Grid points for each bandwidth; the fast metric interpolates between the same points.
POINTS_PER_BANDWIDTH = 64
# Beyond these bandwidths all examples weigh the same to eight digits, or only equal confidences
# have any weight. Between them the variance is a normal float32.
WIDEST, NARROWEST = 1e4, 1e-18


def sece(
    logits: Logits,
    labels: Labels,
    *,
    bandwidth: float = 0.01,
    form: Form = "points",
    power: float = 1.0,
) -> Scalar:
    r"""Mean gap between confidence and the accuracy of examples with similar confidence.

    $$\mathrm{SECE} = \frac1n \sum_i |a_i - r_i|, \qquad
      a_i = \frac{\sum_j K(r_i - r_j)\, c_j}{\sum_j K(r_i - r_j)}, \qquad
      K(u) = e^{-u^2 / 2h^2}$$

    with confidence r, correctness c and bandwidth h. r has a gradient, also inside the kernel; c
    is constant. As h grows it tends to mean |accuracy - r|; as h shrinks to mean |c - r|, which
    rewards over-confidence: h must span several examples. It is biased: at h = 0.01 and 128
    examples of a calibrated model it is above 0.1, not 0.

    Args:
        bandwidth: h, in units of confidence.
        form: "points" as above; "leave_one_out" excludes an example from its own a_i; "grid"
            integrates |a(z) - z| over the smoothed density of confidence, renormalised on [0, 1].
        power: exponent of the gap, at least 1.

    References:
        Wang and Golebiowski, Meta-Calibration Regularized Neural Networks, arXiv:2303.15057.
            The paper's exact estimator is not public; this is the Nadaraya-Watson form.
    """
    at_least("power", 1, power)
    confidence, correct = confidence_and_correct(logits, labels)
    return smooth_gap(confidence, correct, bandwidth=bandwidth, form=form, power=power)


def smooth_gap(
    confidence: PerExample,
    correct: PerExample,
    *,
    bandwidth: float = 0.01,
    form: Form = "points",
    power: float = 1.0,
    weights: PerExample | None = None,
) -> Scalar:
    """SECE from confidences and correctness; `weights` are numbers of occurrences."""
    check_kernel(bandwidth, form)
    twice_variance = 2 * min(max(bandwidth, NARROWEST), WIDEST) ** 2
    own = torch.ones_like(confidence) if weights is None else weights.to(confidence.dtype)
    if form == "grid":
        at = grid_points(bandwidth).to(confidence)
        kernel = torch.exp((at[:, None] - confidence).square() / -twice_variance) * own
        density = kernel.sum(1)
        # Here and below no matrix product: autocast would compute it in half precision.
        near = (kernel * correct).sum(1) / density.clamp_min(torch.finfo(kernel.dtype).tiny)
        # The trapezoidal rule: end points have half the weight.
        share = torch.cat([density[:1] / 2, density[1:-1], density[-1:] / 2])
        return (share * (near - at).abs() ** power).sum() / share.sum()
    exponent = (confidence[:, None] - confidence).square() / -twice_variance
    if form == "points" and weights is None:
        return _gap(exponent, confidence, correct, power).mean()
    counts = own.expand(len(own), -1)
    if form == "leave_one_out":
        counts = (counts - torch.eye(len(own)).to(own)).clamp_min(0)
    alone = counts.sum(1) == 0
    gap = _gap(exponent + (counts + alone[:, None]).log(), confidence, correct, power)
    return (own * ~alone * gap).sum() / own.sum()


def _gap(exponent: Tensor, confidence: PerExample, correct: PerExample, power: float) -> PerExample:
    """Gap of each example, given the log-weights (n, n) of the others."""
    # A softmax never divides zero by zero, however far the neighbours are.
    gap = ((torch.softmax(exponent, 1) * correct).sum(1) - confidence).abs()
    return gap if power == 1 else gap**power


def grid_points(bandwidth: float) -> Tensor:
    """Equally spaced points from 0 to 1, float64, at least `POINTS_PER_BANDWIDTH` a bandwidth."""
    steps = max(256, math.ceil(POINTS_PER_BANDWIDTH / bandwidth))
    return torch.linspace(0, 1, steps + 1, dtype=torch.float64)


def check_kernel(bandwidth: float, form: str, *, name: str = "form") -> None:
    """Require a positive bandwidth and an existing form; `name` is the setting of the form."""
    positive("bandwidth", bandwidth, infinite=True)
    one_of(name, form, FORMS)
