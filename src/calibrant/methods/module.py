"""A training method as an `nn.Module`, so that a host saves and moves its state."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.methods.base import Method


class MethodModule(nn.Module):
    """Make method state part of the module that it is assigned to.

    Multipliers, gamma-nets and their optimizers are then in the `state_dict` of the host and move
    with `.to(device)`. They are not parameters of the host, because its optimizer must not train
    a gamma-net, which minimises another loss.

    Examples:
        >>> from calibrant.methods import CalsAlm
        >>> host = nn.Linear(4, 3)
        >>> host.calibration = MethodModule(CalsAlm(3))
        >>> sorted(host.state_dict())
        ['bias', 'calibration._extra_state', 'weight']
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of a batch, see `Method.loss`."""
        return self.method.loss(model, batch)

    def get_extra_state(self) -> dict[str, Any]:
        """Method state, for `state_dict`."""
        return self.method.state_dict()

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load method state, for `load_state_dict`."""
        self.method.load_state_dict(state)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MethodModule":
        """Move method state when the host moves; its precision stays."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.method.to(fn(torch.zeros(())).device)
        return self
