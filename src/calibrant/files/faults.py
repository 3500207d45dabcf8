"""Fault injection: named points of a write at which tests kill the process.

`CALIBRANT_FAULT=checkpoint.inside:2` kills it the second time that a file whose name starts with
`checkpoint` is half written. Without the variable nothing happens.
"""

import os
import signal
from pathlib import Path
from typing import BinaryIO

# In the order of a write.
STAGES = ("before", "inside", "drafted", "after")

_seen: dict[str, int] = {}


def fault(path: Path, stage: str, handle: BinaryIO | None = None) -> None:
    """Kill the process if the environment names this point; an open file is truncated to half."""
    point_and_count = os.environ.get("CALIBRANT_FAULT")
    if not point_and_count:
        return
    point = f"{path.name.partition('.')[0].partition('-')[0]}.{stage}"
    name, _, count = point_and_count.partition(":")
    if point != name:
        return
    _seen[point] = _seen.get(point, 0) + 1
    if _seen[point] == int(count or 1):
        if handle is not None:
            handle.truncate(handle.tell() // 2)
            handle.flush()
        os.kill(os.getpid(), signal.SIGKILL)
