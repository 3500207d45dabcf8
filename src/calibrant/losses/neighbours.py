"""Neighbour-aware smoothing of masks: logits near the class shares of the surrounding pixels."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed, label_index, mean_over_allowed
from calibrant.losses.settings import SOURCES, Source, at_least, integer, one_of
from calibrant.shapes import Labels, Logits, PerExample

Distance = Literal["l1", "l2"]
DISTANCES = ("l1", "l2")
POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def nacl(
    logits: Logits,
    labels: Labels,
    shares: Logits | None = None,
    *,
    alpha: float = 0.1,
    distance: Distance = "l1",
) -> PerExample:
    r"""Cross entropy plus the distance of the logits to the class shares of the neighbours (NACL).

    $$\ell = -\log p_y + \frac{\alpha}{k} \sum_j |\tau_j - z_j|$$

    where $\tau_j$ is the share of class j among the pixels around, see `neighbour_shares`. Inside a
    region the penalty pulls the logit of the class to 1 and the others to 0, at a boundary to a
    mixture: logits stay small, and smaller where neighbours disagree. It fixes the level of the
    logits, so adding a constant to them changes it. `alpha = 0` is cross entropy.

    Args:
        logits: of all valid pixels.
        labels: of all valid pixels.
        shares: $\tau$, (n, k); by default 1 for the label and 0 for the others, as without
            neighbours.
        alpha: weight of the penalty.
        distance: "l1" as above, or "l2" for squares.

    References:
        Murugesan et al., Trust Your Neighbours: Penalty-Based Constraints for Model Calibration,
            MICCAI 2023, arXiv:2303.06268
        Murugesan et al., Neighbor-Aware Calibration of Segmentation Networks with Penalty-Based
            Constraints, 2024, arXiv:2401.14487
    """
    at_least("alpha", 0, alpha)
    one_of("distance", distance, DISTANCES)
    values = promote_dtype(logits)
    base = cross_entropy(values, labels)
    if shares is None:
        shares = torch.zeros_like(values).scatter(1, label_index(labels, values), 1.0)
    gap = values.where(allowed(values), 0.0) - shares
    return base + alpha * mean_over_allowed(gap.abs() if distance == "l1" else gap**2, values)


def neighbour_shares(
    labels: Int[Tensor, "n ..."],
    classes: int,
    *,
    size: int = 3,
    ignore_index: int | None = None,
    form: Source = "paper",
) -> Float[Tensor, "n k ..."]:
    """Share of each class among the pixels in a square, or cube, around each pixel.

    Args:
        labels: masks, (n, h, w); volumes, (n, h, w, d); or tokens, (n, t).
        classes: k.
        size: odd width of the neighbourhood.
        ignore_index: label of pixels that are no neighbours.
        form: "paper" are shares of the neighbours that exist, so that they sum to 1 at the
            border, too; "public_code" counts pixels outside of the image as neighbours of no class.

    Examples:
        >>> neighbour_shares(torch.tensor([[0, 0, 1]]), 2)[0, 1]
        tensor([0.0000, 0.3333, 0.5000])
    """
    integer("size", 1, size)
    one_of("form", form, SOURCES)
    if size % 2 == 0:
        raise ValueError(f"size must be odd, got {size}")
    if labels.ndim - 1 not in POOLS:
        raise ValueError(
            f"labels must be masks (n, h, w), volumes or tokens, got {tuple(labels.shape)}"
        )
    valid = torch.ones_like(labels, dtype=torch.bool)
    if ignore_index is not None:
        valid = labels != ignore_index
    # On the meta device: only its shape is read.
    like = torch.empty(labels.numel(), classes, device="meta")
    index = label_index(labels.where(valid, 0).flatten(), like).view(labels.shape)
    one_hot = functional.one_hot(index, classes).movedim(-1, 1)
    # Padded by hand: the pools refuse an image that is smaller than the square.
    border = (size // 2,) * 2 * (labels.ndim - 1)
    present = functional.pad(valid[:, None].float(), border)
    shares = functional.pad(one_hot * valid[:, None].float(), border)
    pool = POOLS[labels.ndim - 1]
    found = pool(shares, size, stride=1)
    if form == "public_code":
        return found
    return found / pool(present, size, stride=1).clamp_min(torch.finfo(torch.float32).tiny)
