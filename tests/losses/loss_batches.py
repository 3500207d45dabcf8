"""Batches for the tests of losses."""

import torch


class OnGpu(torch.Tensor):
    """Claims to be on a GPU, where values must not be read."""

    is_cuda = True


def batch(n=12, k=4, *, seed=0, scale=2.0, dtype=torch.float64):
    """Random logits (n, k) and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(k, (n,), generator=generator)
