"""Sharpness-aware minimisation: a second gradient at a worse place nearby."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from calibrant.losses.settings import positive


class Sharpness:
    r"""Sharpness-aware minimisation: the gradient is taken where the loss is worst nearby.

    $$w \leftarrow w - lr\, \nabla L(w + \rho\, g / \|g\|), \qquad g = \nabla L(w)$$

    Use: `backward`, `ascend`, `zero_grad`, `backward` again, `restore`, then the optimizer's step.
    BatchNorm sees both passes.

    Args:
        rho: how far to go.

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, arXiv:2010.01412.
    """

    def __init__(self, rho: float) -> None:
        positive("rho", rho)
        self.rho = rho
        self._before: list[tuple[nn.Parameter, Tensor]] = []

    @torch.no_grad()
    def ascend(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the weights by rho along the gradient; nowhere if it is zero."""
        if self._before:
            raise ValueError("the weights must be put back by restore() before they move again")
        moving = [(each, each.grad) for each in parameters if each.grad is not None]
        norm = nn.utils.get_total_norm([gradient for _, gradient in moving])
        scale = torch.where(norm > 0, self.rho / norm, torch.zeros_like(norm))
        for each, gradient in moving:
            self._before.append((each, each.clone()))
            each.addcmul_(gradient, scale.to(each.dtype))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights back, bit for bit."""
        for each, before in self._before:
            each.copy_(before)
        self._before = []
