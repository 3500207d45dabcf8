"""Moving averages of the weights, which often predict better than the last weights do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    r"""Exponential moving average of the weights; buffers are those of the newest model.

    $$a \leftarrow decay \cdot a + (1 - decay) \cdot w$$

    It starts at the weights the model has when this is made, and weights that last about
    1 / (1 - decay) steps: a decay of 0 is the newest weights. A decay of 1 gives all steps from
    `start` on the same weight (SWA), and is the newest weights before. Statistics of batch norm
    are copies, not averages, as they are averages already; but for a decay of 1 they are averaged
    like the weights.

    References:
        Izmailov et al., Averaging Weights Leads to Wider Optima, UAI 2018, arXiv:1803.05407
    """

    def __init__(self, model: nn.Module, decay: float, *, start: int = 0) -> None:
        self.decay, self.start = decay, start
        self._values = _copies(model)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after a step; steps count from 0."""
        share = 1 - self.decay if self.decay < 1 else 1 / max(1, step - self.start + 1)
        weights = dict(model.named_parameters())
        averaged, newest = [], []
        for name, value in _tensors(model).items():
            if value.is_floating_point() and (name in weights or self.decay == 1):
                averaged.append(self._values[name])
                newest.append(value)
            else:
                self._values[name].copy_(value)
        torch._foreach_lerp_(averaged, newest, share)

    def copy_to(self, model: nn.Module) -> None:
        """Overwrite the weights and buffers of a model with the average."""
        _overwrite(_tensors(model), self._values)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside, and its own, bit for bit, afterwards."""
        own = _copies(model)
        self.copy_to(model)
        try:
            yield
        finally:
            _overwrite(_tensors(model), own)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the averaged weights and the buffers, by the names they have in the model."""
        return {name: value.clone() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load such a state, of the same model."""
        _overwrite(self._values, state)


@torch.no_grad()
def _overwrite(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in _tensors(model).items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, without gradient."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach() for name, value in named.items()}
