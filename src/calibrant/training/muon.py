"""Muon for convolutions: which weights are hidden, and kernels as matrices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class KernelMuon(torch.optim.Muon):
    """Torch's Muon, which takes matrices only, for weights with more axes.

    A kernel (out, in, height, width) is the matrix (out, in * height * width). It is a view where
    memory allows; a kernel in channels_last is copied and written back. So the order of columns,
    and with it the state, does not depend on the memory format.
    """

    def __init__(self, kernels: Sequence[nn.Parameter], **settings: Any) -> None:
        self.kernels = list(kernels)
        super().__init__([nn.Parameter(_matrix(kernel)) for kernel in kernels], **settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Point the matrices at the kernels of now, step, and see that the kernels have moved."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices = self.param_groups[0]["params"]
        for kernel, matrix in zip(self.kernels, matrices, strict=True):
            # Fresh each time: `model.to(...)` gives a kernel new memory.
            matrix.data = _matrix(kernel)
            matrix.grad = None if kernel.grad is None else _matrix(kernel.grad)
        super().step()  # type: ignore[no-untyped-call]
        for kernel, matrix in zip(self.kernels, matrices, strict=True):
            if matrix.data_ptr() != kernel.data_ptr():
                kernel.copy_(matrix.view(kernel.shape))
            matrix.grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the kernels."""
        for kernel in self.kernels:
            kernel.grad = None


def _matrix(kernel: Tensor) -> Tensor:
    return kernel.detach().reshape(len(kernel), -1)


def hidden_kernels(model: nn.Module) -> list[nn.Parameter]:
    """The weights with two axes or more between the first layer and the head."""
    matrices = [each for each in model.parameters() if each.ndim > 1]
    head = getattr(model, "head", None)
    outer = list(head.parameters()) if isinstance(head, nn.Module) else matrices[-1:]
    outer += matrices[:1]
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            outer += list(module.parameters())
    excluded = {id(each) for each in outer}
    return [each for each in matrices if each.requires_grad and id(each) not in excluded]
