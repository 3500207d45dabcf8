"""A stand-in for tensors on a GPU, whose values are not looked at."""

import torch


class OnGpu(torch.Tensor):
    """Says of itself that it lies on a GPU."""

    is_cuda = True
