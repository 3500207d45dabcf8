"""Where a training runs: in one process; `distributed.py` has many that act as one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from calibrant.methods import SingleProcess


class Runtime(SingleProcess):
    """One process, on the device it is given or the best there is.

    Args:
        device: auto, cpu or cuda; a `torch.device` is taken as it is.
    """

    rank = 0
    world_size = 1

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.device = resolve_device(device) if isinstance(device, str) else device

    def align(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""

    def reduce(self, model: nn.Module) -> None:
        """Average the gradients over the processes; buffers become those of the first."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether each flag is set in any process."""
        return flags

    def states(self, state: Any) -> list[Any]:
        """A plain value of each process, in the order of their ranks."""
        return [state]

    def first(self, work: Callable[[], None]) -> None:
        """Do what only the first process does; if it fails there, all know."""
        work()

    def close(self) -> None:
        """Leave the process group."""


def resolve_device(name: str) -> torch.device:
    """The device of this name; the best there is for `auto`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"no device {name!r}; expected auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"no CUDA device {name!r}, {torch.cuda.device_count()} found; omit --device or use cpu"
        )
    return device
