"""Several processes that train as one, through collective operations of torch.

Batches are cut between the processes and gradients are averaged, so many processes take the step
that one would take (BatchNorm aside: its statistics are not synchronised across processes).
Gradients are averaged here, after the backward pass, and not by `DistributedDataParallel`: its
reducer outlives `destroy_process_group` as the last owner of the group, and when the garbage
collector frees it, the group waits for a thread that waits for the collector's lock.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.training.runtime import Runtime, resolve_device

# Numbers that are sent together: few messages, and little memory in addition to the gradients.
BUCKET = 1 << 23
# Seconds that a process waits for the others to arrive.
LIMIT = 60.0

AnyTensor = TypeVar("AnyTensor", bound=Tensor)
# torch has no types for its stores.
Store = Any


@runtime_checkable
class Launched(Protocol):
    """A process that was started with others by one command, on one machine."""

    rank: int
    world_size: int

    def exchange_port(self, port: int) -> int:
        """Send the port of the first process to the others; they ignore theirs and return it."""


class FirstProcessError(Exception):
    """The first process could not do its part, and says so itself; the others just end."""


class ProcessGroup(Runtime):
    """The processes of the default group of torch, whoever made it."""

    def __init__(self, device: str | torch.device) -> None:
        super().__init__(device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def align(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""
        self._broadcast([*model.parameters(), *model.buffers()])

    @torch.no_grad()
    def reduce(self, model: nn.Module) -> None:
        """Average the gradients over the processes; buffers become those of the first."""
        for bucket in _buckets(each for each in model.parameters() if each.requires_grad):
            self._average_gradients(bucket)
        self._broadcast(model.buffers())

    def _average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average in place; a parameter that no process has a gradient of keeps none."""
        found = [each.grad is not None for each in parameters]
        parts = [
            each.new_zeros(each.numel()) if each.grad is None else each.grad.reshape(-1)
            for each in parameters
        ]
        flat = torch.cat([*parts, parts[0].new_tensor(found)])
        with _peers_answer():
            dist.all_reduce(flat)
        flat /= self.world_size
        *means, used = torch.split(flat, [*map(len, parts), len(parts)])
        for each, mean, share in zip(parameters, means, used.tolist(), strict=True):
            if share and each.grad is None:
                each.grad = torch.empty_like(each)
            if share and each.grad is not None:
                each.grad.copy_(mean.view_as(each))

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        for bucket in _buckets(tensors):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            with _peers_answer():
                dist.broadcast(flat, src=0)
            parts = torch.split(flat, [each.numel() for each in bucket])
            for each, values in zip(bucket, parts, strict=True):
                each.copy_(values.view_as(each))

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether each flag is set in any process."""
        counts = self.total(torch.tensor(flags, dtype=torch.float32, device=self.device))
        return tuple(bool(count > 0) for count in counts)

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over the processes; no gradient."""
        summed = tensor.detach().clone()
        with _peers_answer():
            dist.all_reduce(summed)
        return summed

    def gather(self, tensor: Tensor) -> Tensor:
        """Examples of all processes, in the order of their ranks; gradients flow back."""
        size = torch.tensor([len(tensor)], device=tensor.device)
        counts = [torch.zeros_like(size) for _ in range(self.world_size)]
        with _peers_answer():
            dist.all_gather(counts, size)
        sizes = [int(count) for count in counts]
        gathered: Tensor = _Gather.apply(tensor, sizes, self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def states(self, state: Any) -> list[Any]:
        """A plain value of each process, in the order of their ranks."""
        found: list[Any] = [None for _ in range(self.world_size)]
        with _peers_answer():
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


class ManyProcesses(ProcessGroup):
    """Processes that were started together, by `calibrant train --devices` or by torchrun."""

    def __init__(self, device: str = "auto", launched: Launched | None = None) -> None:
        own = resolve_device(device)
        # Default arguments of its functions own the group that exists when it is imported, as the
        # first optimizer does: imported before there is one, so that `close` ends ours.
        import_module("torch.distributed.nn.functional")
        store, rank, world_size = _store(launched)
        _wait_for_all(store, rank, world_size)
        if own.type == "cuda":
            own = _own_cuda_device(rank, world_size)
            torch.cuda.set_device(own)
        backend = "nccl" if own.type == "cuda" else "gloo"
        with _peers_answer():
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        super().__init__(own)

    def close(self) -> None:
        """Leave the process group, which nothing else holds: it ends here and not later."""
        if dist.is_initialized():
            dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """Concatenate the examples of all processes; gradients are summed over the processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int], rank: int) -> Tensor:
        most = max(counts)
        padded = tensor.new_zeros(most, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in counts]
        with _peers_answer():
            dist.all_gather(parts, padded)
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients[0].contiguous().clone()
        with _peers_answer():
            dist.all_reduce(summed)
        return summed[ctx.start : ctx.start + ctx.count], None, None


def start(device: str = "auto", launched: Launched | None = None) -> Runtime:
    """The runtime of this process: one of many under torchrun or if launched, else alone."""
    if launched is not None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return ManyProcesses(device, launched)
    return Runtime(device)


def _store(launched: Launched | None) -> tuple[Store, int, int]:
    """What the processes find each other by, with the rank of this one and their number."""
    limit = timedelta(seconds=LIMIT)
    if launched is None:
        found: tuple[Store, int, int] = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        return found
    rank, size = launched.rank, launched.world_size
    # Any free port: it is known only once the first process has it, so nobody else can take it.
    port = 0 if rank == 0 else launched.exchange_port(0)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False
    )
    if rank == 0:
        launched.exchange_port(store.port)
    return store, rank, size


def _wait_for_all(store: Store, rank: int, world_size: int) -> None:
    """Return when every process is here; later operations may take long, arriving may not."""
    deadline = time.monotonic() + LIMIT
    store.set(f"here/{rank}", "")
    missing = [f"here/{each}" for each in range(world_size)]
    # Asked again and again: a wait that runs out of time would print lines of its own.
    while missing := [each for each in missing if not store.check([each])]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(missing)} of {world_size} processes did not arrive within {LIMIT:.0f} s; "
                "re-run the same command to resume"
            )
        time.sleep(0.01)


def _own_cuda_device(rank: int, world_size: int) -> torch.device:
    local = int(os.environ.get("LOCAL_RANK", rank))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if here > torch.cuda.device_count():
        raise ValueError(
            f"{here} processes need as many CUDA devices, {torch.cuda.device_count()} found; "
            "use fewer --devices or --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def _peers_answer() -> Iterator[None]:
    """Say in one line that another process is gone, which backends say in many ways."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"another process of this run ended early: {error}") from error


def _buckets(tensors: Iterable[AnyTensor]) -> list[list[AnyTensor]]:
    """Tensors of one type that are sent together."""
    buckets: list[list[AnyTensor]] = []
    size = 0
    for each in sorted(tensors, key=lambda tensor: str(tensor.dtype)):
        size += each.numel()
        if not buckets or buckets[-1][0].dtype != each.dtype or size > BUCKET:
            buckets.append([])
            size = each.numel()
        buckets[-1].append(each)
    return buckets
