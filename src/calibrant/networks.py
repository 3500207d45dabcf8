"""A network inside its wrappers, and in another mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

WRAPPERS = (DataParallel, DistributedDataParallel)


def bare(model: nn.Module) -> nn.Module:
    """The network inside the wrappers that average its gradients over processes.

    A network of a user may have a part called `module`: only wrappers are opened.
    """
    while isinstance(model, WRAPPERS) or type(model).__name__ == "_FabricModule":
        model = model.get_submodule("module")
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
