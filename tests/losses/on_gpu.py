"""A replacement for tensors on a GPU, whose values must not be read."""

import torch


class OnGpu(torch.Tensor):
    """Claims to be on a GPU."""

    is_cuda = True
