"""Differentiable ECE (DECE): soft bins and soft correctness."""

import torch

from calibrant.losses.log_probs import allowed, batch_probs, label_index
from calibrant.losses.settings import SOURCES, Source, integer, one_of, positive
from calibrant.shapes import Labels, Logits, Scalar


def dece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    bin_temperature: float = 0.01,
    rank_scale: float = 100.0,
    form: Source = "paper",
) -> Scalar:
    r"""Expected calibration error with soft bin membership and soft correctness.

    $$\mathrm{DECE} = \frac1n \sum_{b=1}^B \Big| \sum_i q_{ib} (a_i - r_i) \Big|, \qquad
      q_i = \mathrm{softmax}_b \frac{b\, r_i - b(b-1)/2B}{T}, \qquad
      a_i = \max\Big(0, 1 - \sum_{j \ne y} \sigma\big(s\,(p_{ij} - p_{iy})\big)\Big)$$

    with confidence r. As T falls and s grows it becomes ECE with B equal-width bins. A batch
    statistic (weight 0.5 in the paper), best on examples held out from training. Unlike `sece`, it
    has a gradient through correctness a. Where two classes tie at the top, each is half correct.

    Args:
        bins: B.
        bin_temperature: T, in units of confidence.
        rank_scale: s, the inverse of a temperature.
        form: "paper" as above. "public_code" first adds $10^{-6}$ to every membership and divides
            by $1 + (B + 1) 10^{-6}$.

    References:
        Bohdal et al., Meta-Calibration: Learning of Model Calibration Using Differentiable
            Expected Calibration Error, TMLR 2023, arXiv:2106.09613
    """
    integer("bins", 1, bins)
    positive("bin_temperature", bin_temperature)
    positive("rank_scale", rank_scale)
    one_of("form", form, SOURCES)
    probs = batch_probs(logits)
    confidence = probs.max(1).values
    index = label_index(labels, probs)
    # At -inf neither a masked class nor the label itself ranks above the label.
    others = probs.where(allowed(logits), -torch.inf).scatter(1, index, -torch.inf)
    ranked_above = torch.sigmoid(rank_scale * (others - probs.gather(1, index))).sum(1)
    accuracy = (1 - ranked_above).relu()
    number = torch.arange(1, bins + 1, device=probs.device, dtype=probs.dtype)
    edge_sums = (number - 1) / (2 * bins)
    member = torch.softmax(number / bin_temperature * (confidence[:, None] - edge_sums), 1)
    if form == "public_code":
        member = (member + 1e-6) / (1 + (bins + 1) * 1e-6)
    gaps = member * (accuracy - confidence)[:, None]
    return gaps.mean(0).abs().sum()
