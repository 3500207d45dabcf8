"""Batches for the tests of methods that learn on held-out data."""

import torch

from calibrant.data import Batch

K = 3


def batch_of(n: int, seed: int, width: int = 8) -> Batch:
    """Inputs that say something about the label."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, width, generator=generator, dtype=torch.float64)
    labels = (inputs[:, :K] + torch.randn(n, K, generator=generator)).argmax(1)
    return Batch(inputs, labels, torch.arange(n))
