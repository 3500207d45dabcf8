"""How processes that train together find each other, in a minute or not at all."""

import os
import time
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist

# Seconds that a process waits for the others to arrive.
LIMIT = 60.0
# torch has no types for its stores.
Store = Any


@runtime_checkable
class Launched(Protocol):
    """A process that was started with others by one command, on one machine."""

    rank: int
    world_size: int

    def meet(self, port: int) -> int:
        """Tell the others the port of the first process; they ignore their own and return it."""


def under_torchrun() -> bool:
    """Whether torchrun, or what sets the same variables, started this process with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def arrive(launched: Launched | None) -> tuple[Store, int, int]:
    """Wait for all; what they agree through, the rank of this process and their number."""
    store, rank, world_size = _store(launched)
    _wait_for_all(store, rank, world_size)
    return store, rank, world_size


def _store(launched: Launched | None) -> tuple[Store, int, int]:
    """What the processes find each other by, with the rank of this one and their number."""
    limit = timedelta(seconds=LIMIT)
    if launched is None:
        found: tuple[Store, int, int] = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        return found
    rank, size = launched.rank, launched.world_size
    # Any free port: it is known only once the first process has it, so nobody else can take it.
    port = 0 if rank == 0 else launched.meet(0)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False
    )
    if rank == 0:
        launched.meet(store.port)
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
                "run the same command again"
            )
        time.sleep(0.01)
