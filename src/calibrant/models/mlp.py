"""Fully connected networks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrant.losses.settings import one_of, positive
from calibrant.models.network import Network

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class MLP(Network):
    """Linear layers with an activation after each; images are flattened.

    Two hidden layers of 200 with tanh are the network on which the edge of stability was first
    shown; without batch norm, training and evaluation mode have the same curvature.

    Args:
        inputs: elements of one input.
        hidden: width of each hidden layer; an empty list is logistic regression.
        activation: `tanh` or `relu`.

    References:
        Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability,
        ICLR 2021, arXiv:2103.00065.
    """

    def __init__(
        self,
        classes: int,
        inputs: int,
        *,
        hidden: Sequence[int] = (200, 200),
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        one_of("activation", activation, ACTIVATIONS)
        for size in hidden:
            positive("hidden", size)
        self.activation = activation
        sizes = [inputs, *hidden]
        self.layers = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
        self.head = nn.Linear(sizes[-1], classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer, (n, d)."""
        # In the order (c, h, w) for any memory format.
        out = x.flatten(1)
        for layer in self.layers:
            out = ACTIVATIONS[self.activation](layer(out))
        return out
