"""A moving average of the weights, which often predicts better than the last weights do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calibrant.losses.settings import fraction


class Average:
    r"""Exponential moving average of the weights; buffers are those of the newest model.

    $$a \leftarrow decay \cdot a + (1 - decay) \cdot w$$

    It starts at the weights the model has when this is made, and weights that last about
    1 / (1 - decay) steps. Statistics of batch norm are copies, not averages: they are averages
    already.

    Args:
        model: whose weights are averaged.
        decay: 0 is the newest weights, 1 the first.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        fraction("decay", decay)
        self.decay = decay
        self._values = {name: value.clone() for name, value in _tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights of one more step."""
        weights = dict(model.named_parameters())
        for name, value in _tensors(model).items():
            if name in weights and value.is_floating_point():
                self._values[name].lerp_(value, 1 - self.decay)
            else:
                self._values[name].copy_(value)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Overwrite the weights and buffers of a model with the average."""
        for name, value in _tensors(model).items():
            value.copy_(self._values[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside, and its own, bit for bit, afterwards."""
        own = {name: value.clone() for name, value in _tensors(model).items()}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in _tensors(model).items():
                    value.copy_(own[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the averaged weights and the buffers, by the names they have in the model."""
        return {name: value.clone() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load such a state."""
        if wrong := sorted(state.keys() ^ self._values.keys()):
            raise ValueError(
                f"the average is of another model: {wrong[0]!r} is in only one of them"
            )
        for name, value in self._values.items():
            if state[name].shape != value.shape:
                raise ValueError(
                    f"the average is of another model: {name!r} must have shape "
                    f"{tuple(value.shape)}, got {tuple(state[name].shape)}"
                )
            value.copy_(state[name])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, without gradient."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach() for name, value in named.items()}
