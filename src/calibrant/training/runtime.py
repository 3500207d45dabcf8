"""Where a training runs: in one process, or in many that act as one.

Batches are cut between the processes and gradients are averaged, so many processes take the step
that one would take (batch norm aside, which sees its own process only). Many go through Lightning
Fabric, which takes seconds to import: one process never does.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.extras import need
from calibrant.methods import Alone


class FirstProcessError(Exception):
    """The first process could not do its part, and says so itself; the others just end."""


class Runtime(Alone):
    """One process, on the device it is given or the best there is."""

    rank = 0
    world_size = 1

    def __init__(self, device: str = "auto") -> None:
        self.device = _device(device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return what the loss is computed with; parameters are shared with the model."""
        return model

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether each flag is set in any process."""
        return flags

    def align(self, model: nn.Module) -> None:
        """Give every process the running statistics of the first."""

    def states(self, state: Any) -> list[Any]:
        """A plain value of each process, in the order of their ranks."""
        return [state]

    def first(self, work: Callable[[], None]) -> None:
        """Do what only the first process does; if it fails there, all know."""
        work()

    def close(self) -> None:
        """Take leave of the other processes."""


class ManyProcesses(Runtime):
    """Processes that were started together, by `calibrant train --devices` or by torchrun."""

    def __init__(self, device: str = "auto", devices: int | None = None) -> None:
        fabric = need("lightning_fabric", extra="study", what="training in several processes")
        kind = "cpu" if _device(device).type == "cpu" else "cuda"
        started = "TORCHELASTIC_RUN_ID" in os.environ
        count = int(os.environ["LOCAL_WORLD_SIZE"]) if started else devices or 1
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if started else 1
        self.fabric = fabric.Fabric(
            accelerator=kind, devices=count, num_nodes=nodes, strategy="ddp"
        )
        self.fabric.launch()
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        self.device = self.fabric.device

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a model whose backward averages gradients over the processes."""
        wrapped: nn.Module = self.fabric.setup_module(model)
        return wrapped

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, averaged over the processes."""
        self.fabric.backward(loss)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether each flag is set in any process."""
        raised = self.total(torch.tensor(flags, dtype=torch.float32, device=self.device))
        return tuple(bool(count > 0) for count in raised)

    def align(self, model: nn.Module) -> None:
        """Give every process the running statistics of the first."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over the processes; no gradient."""
        summed = tensor.detach().clone()
        dist.all_reduce(summed)
        return summed

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, in the order of their ranks; gradients flow back."""
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in self._ranks()]
        dist.all_gather(counts, torch.tensor([len(tensor)], device=tensor.device))
        sizes = [int(count) for count in counts]
        gathered: Tensor = _Gather.apply(tensor, sizes, self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def states(self, state: Any) -> list[Any]:
        """A plain value of each process, in the order of their ranks."""
        found: list[Any] = [None for _ in self._ranks()]
        dist.all_gather_object(found, state)
        return found

    def first(self, work: Callable[[], None]) -> None:
        """Do what only the first process does; if it fails there, all know."""
        error: Exception | None = None
        if self.rank == 0:
            try:
                work()
            except Exception as caught:
                # Raised below: the others wait for word of how this went.
                error = caught
        said = self.states(None if error is None else str(error))[0]
        if error is not None:
            raise error
        if said is not None:
            raise FirstProcessError(said)

    def close(self) -> None:
        """Take leave of the other processes."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _ranks(self) -> range:
        return range(self.world_size)


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes; the gradient of a row sums over who used it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int], rank: int) -> Tensor:
        most = max(counts)
        padded = tensor.new_zeros(most, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        summed = slopes[0].contiguous().clone()
        dist.all_reduce(summed)
        return summed[ctx.start : ctx.start + ctx.count], None, None


def start(device: str = "auto", devices: int = 1) -> Runtime:
    """The runtime that the command line or torchrun asks for."""
    under_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if devices > 1 or under_torchrun:
        return ManyProcesses(device, devices)
    return Runtime(device)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device {name!r}; expected auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; expected auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device is here; leave --device out or say cpu")
    return device
