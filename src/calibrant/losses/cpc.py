"""Constraints on pairs of logits."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from calibrant.checks import promote_dtype
from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.log_probs import allowed, label_index
from calibrant.losses.settings import SOURCES, Source, at_least, one_of
from calibrant.shapes import Labels, Logits, PerExample

# Pairs of logits in memory at a time; 16 MB in float32.
PAIRS = 1 << 22


def cpc(
    logits: Logits,
    labels: Labels,
    *,
    discrimination: float = 0.1,
    exclusion: float = 1.0,
    form: Source = "paper",
) -> PerExample:
    r"""Cross entropy plus two pairwise terms: label against each wrong class, wrong classes equal.

    $$\ell = -\log p_y + \lambda_D \frac{1}{k-1} \sum_{j \ne y} -\log \sigma(z_y - z_j)
      + \lambda_E \frac{1}{2 (k-1)(k-2)} \sum_{i \ne j;\, i, j \ne y} -\log \sigma(z_i - z_j)$$

    The second sum has its minimum, $\tfrac12 \log 2$ per example, where all wrong classes are
    equally likely. It needs at least 3 classes and $k^2$ terms, which are computed in chunks and
    recomputed for the gradient, so memory stays bounded. Both weights 0 is cross entropy. Masked
    classes form no pairs, and k counts the others; a sum without pairs is 0.

    Args:
        discrimination: weight of the first sum.
        exclusion: weight of the second sum.
        form: "paper" leaves out i = j; "public_code" includes it, which adds the constant
            $\log 2 / (2 (k-2))$ and changes no gradient.

    References:
        Cheng and Vasconcelos, Calibrating Deep Neural Networks by Pairwise Constraints, CVPR 2022
    """
    at_least("discrimination", 0, discrimination)
    at_least("exclusion", 0, exclusion)
    one_of("form", form, SOURCES)
    z = promote_dtype(logits)
    base = cross_entropy(z, labels)
    n, k = logits.shape
    if k < 3:
        raise ValueError(f"cpc compares pairs of wrong classes and needs at least 3, got {k}")
    is_label = torch.zeros_like(z, dtype=torch.bool).scatter(1, label_index(labels, z), True)
    others = z[~is_label].reshape(n, k - 1)
    valid = allowed(others)
    count = valid.sum(1).to(z.dtype)
    gaps = z[is_label][:, None] - others.where(valid, 0)
    against = -logsigmoid(gaps).where(valid, 0).sum(1) / count.clamp_min(1)
    total = _sum_over_pairs(others.where(valid, torch.inf), others)
    if form == "paper":
        total = total - math.log(2) * count
    # A single class forms no pair, though the sum above compared it with itself.
    level = total.where(count > 1, 0) / (2 * count * (count - 1)).clamp_min(1)
    return base + discrimination * against + exclusion * level


def _sum_over_pairs(first: Logits, others: Logits) -> PerExample:
    """Sum of -log sigmoid(z_i - z_j) over all i, j.

    Masked classes are inf in `first` and -inf in `others`: their pairs add 0.
    """
    n, k = others.shape
    step = max(1, PAIRS // max(1, n * k))
    if step >= k:
        return _pair_terms(first, others)
    total = torch.zeros_like(others[:, 0])
    for start in range(0, k, step):
        some = first[:, start : start + step]
        total = total + checkpoint(
            _pair_terms, some, others, use_reentrant=False, preserve_rng_state=False
        )
    return total


def _pair_terms(some: Tensor, others: Tensor) -> Tensor:
    """Sum over the pairs of a logit in `some` and one in `others`."""
    return -logsigmoid(some[:, :, None] - others[:, None]).sum((1, 2))
