"""A network inside its wrappers, and in another mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

WRAPPERS = (DataParallel, DistributedDataParallel)
# Other wrappers, and what they call the network.
INSIDE = {"_FabricModule": "module", "OptimizedModule": "_orig_mod"}


def bare(model: nn.Module) -> nn.Module:
    """The network inside what averages its gradients over processes, or compiles it.

    A network of a user may have a part called `module`: only wrappers are opened.
    """
    while isinstance(model, WRAPPERS) or type(model).__name__ in INSIDE:
        model = model.get_submodule(INSIDE.get(type(model).__name__, "module"))
    return model


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each part is in the mode it was in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
