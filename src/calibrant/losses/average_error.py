"""Average calibration error of class probabilities, per image: batch statistics for masks."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calibrant.losses.log_probs import allowed, batch_probs, label_index
from calibrant.losses.settings import boolean, integer
from calibrant.shapes import Labels, Logits, Scalar

# Weight below which a bin of soft membership is empty, as in the public code.
EMPTY = 0.01
Entries = Float[Tensor, "n k"]
Bin = Int[Tensor, "n k"]


def hard_l1_ace(
    logits: Logits,
    labels: Labels,
    images: Labels | None = None,
    *,
    bins: int = 20,
    background: bool = True,
) -> Scalar:
    r"""Average calibration error of the classes of each image, with hard bins.

    $$\mathrm{ACE}_{ij} = \frac{1}{|\mathcal B_{ij}|} \sum_{b \in \mathcal B_{ij}}
      \Big| \frac{1}{|b|} \sum_{x \in b} p_{xj} - \frac{1}{|b|} \sum_{x \in b} 1[y_x = j] \Big|$$

    over the non-empty bins of equal width $\mathcal B_{ij}$ of the probability of class j in image
    i; then the mean over classes, then over images. Every bin has the same weight, so the few
    pixels between the classes count as much as the many confident ones. A batch statistic with
    the usual weight 1. Membership of a bin has no gradient.

    Args:
        logits: of all valid pixels.
        labels: of all valid pixels.
        images: the image of each pixel, any integers; by default all are of one image.
        bins: number of bins of equal width.
        background: whether class 0 counts.

    References:
        Barfoot et al., Average Calibration Error: A Differentiable Loss for Improved Reliability
            in Image Segmentation, MICCAI 2024, arXiv:2403.06759
    """
    integer("bins", 1, bins)
    probs = batch_probs(logits)
    index = ((probs.detach() * bins).ceil().long() - 1).clamp(0, bins - 1)
    pairs = [(index, torch.ones_like(probs))]
    return _average_error(probs, pairs, logits, labels, images, bins, background, least=0.5)


def soft_l1_ace(
    logits: Logits,
    labels: Labels,
    images: Labels | None = None,
    *,
    bins: int = 20,
    background: bool = True,
) -> Scalar:
    r"""Average calibration error of the classes of each image, with soft bins.

    As `hard_l1_ace`, but a probability belongs to the two bins whose centres are next to it, with
    weights that are linear in the distance and have a gradient:

    $$w_b(p) = \max(0, 1 - |B p - b + 1/2|)$$

    Beyond the first and the last centre it belongs to that bin alone. Bins of a total weight below
    0.01 are empty. It lowers the error further than hard bins, at the cost of segmentation quality
    in the experiments of its authors.

    Args:
        logits: of all valid pixels.
        labels: of all valid pixels.
        images: the image of each pixel, any integers; by default all are of one image.
        bins: number of bins of equal width.
        background: whether class 0 counts.

    References:
        Barfoot et al., Average Calibration Losses for Reliable Uncertainty in Medical Image
            Segmentation, 2025, arXiv:2506.03942
    """
    integer("bins", 1, bins)
    probs = batch_probs(logits)
    # In units of bins, counted from the first centre.
    place = (probs * bins - 0.5).clamp(0, bins - 1)
    below = place.detach().floor().long().clamp_max(max(bins - 2, 0))
    share = place - below
    pairs = [(below, 1 - share), ((below + 1).clamp_max(bins - 1), share)]
    return _average_error(probs, pairs, logits, labels, images, bins, background, least=EMPTY)


def _average_error(
    probs: Entries,
    pairs: list[tuple[Bin, Entries]],
    logits: Logits,
    labels: Labels,
    images: Labels | None,
    bins: int,
    background: bool,
    *,
    least: float,
) -> Scalar:
    """Mean gap over bins, then classes, then images; pairs are bins and membership in them."""
    boolean("background", background)
    k = probs.shape[1]
    own = torch.zeros_like(probs).scatter(1, label_index(labels, probs), 1.0)
    image = torch.zeros_like(labels) if images is None else images
    names, image = image.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    cells = (image[:, None] * k + torch.arange(k, device=probs.device)) * bins
    weight, gap = probs.new_zeros(2, len(names) * k * bins).unbind()
    for index, member in pairs:
        at = (cells + index).flatten()
        weight = weight.index_add(0, at, member.flatten())
        gap = gap.index_add(0, at, (member * (probs - own)).flatten())
    filled = weight >= least
    error = (gap.abs() / weight.where(filled, 1.0)).where(filled, 0.0).view(-1, k, bins).sum(2)
    count = filled.view(-1, k, bins).sum(2)
    # A class that is masked in every pixel is none.
    counted = allowed(logits).any(0).to(probs)
    if not background:
        counted[0] = 0
    return (error / count.clamp_min(1) * counted).sum(1).mean() / counted.sum().clamp_min(1)
