"""Predictions to measure on: the size and the shape of those of real networks."""

import numpy as np
import torch
from torch import Tensor

SEED = 0


def logits_like_a_network(n: int, k: int, *, accuracy: float = 0.75) -> tuple[Tensor, Tensor]:
    """Draw float32 logits, and labels that hold the largest one about as often as asked.

    Normal noise with a margin on the label. Half of the examples are easy, with a margin that
    gives the confidences near one that real networks have; the other half is hard.
    """
    generator = torch.Generator().manual_seed(SEED)
    logits = torch.randn(n, k, generator=generator) * 2
    labels = torch.randint(k, (n,), generator=generator)
    rows = torch.arange(n)
    easy = torch.rand(n, generator=generator) < 0.5
    others = logits.clone()
    others[rows, labels] = -torch.inf
    lead = others.amax(1) - logits[rows, labels]
    # The easy half is right; of the hard half, as many as are still missing.
    need = torch.quantile(lead[~easy][:100_000], 2 * accuracy - 1)
    logits[rows, labels] += torch.where(easy, lead.amax() + 4, need)
    return logits, labels


def top_label(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw confidences of a two-class model that is a little too sure, and what was right."""
    generator = np.random.default_rng(SEED)
    confidence = 0.5 + 0.5 * generator.beta(3.0, 0.7, n)
    correct = (generator.random(n) < 0.5 + 0.9 * (confidence - 0.5)).astype(np.float64)
    return confidence, correct
