"""Unwrap a network, and switch it to evaluation mode temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

WRAPPERS = (DataParallel, DistributedDataParallel)
# Other wrappers, and their attribute for the network.
INSIDE = {"_FabricModule": "module", "OptimizedModule": "_orig_mod"}


def bare(model: nn.Module) -> nn.Module:
    """Return the network inside DistributedDataParallel, Fabric or compiled wrappers.

    Only wrappers are unwrapped: a network of a user may have a submodule called `module`.
    """
    while isinstance(model, WRAPPERS) or type(model).__name__ in INSIDE:
        model = model.get_submodule(INSIDE.get(type(model).__name__, "module"))
    return model


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set evaluation mode; afterwards restore the mode of each submodule."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
