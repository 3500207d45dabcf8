"""Named instants at which a test kills the process, to prove that nothing is lost there.

`CALIBRANT_FAULT=checkpoint.inside:2` kills it the second time that a file whose name starts with
`checkpoint` is half written. Without the variable nothing happens.
"""

import os
import signal
from pathlib import Path
from typing import BinaryIO

# In the order in which a write passes them.
STAGES = ("before", "inside", "drafted", "after")

_seen: dict[str, int] = {}


def fault(path: Path, stage: str, handle: BinaryIO | None = None) -> None:
    """Die here if this is the instant that the environment names; an open file is left half."""
    wanted = os.environ.get("CALIBRANT_FAULT")
    if not wanted:
        return
    point = f"{path.name.partition('.')[0].partition('-')[0]}.{stage}"
    name, _, count = wanted.partition(":")
    if point != name:
        return
    _seen[point] = _seen.get(point, 0) + 1
    if _seen[point] == int(count or 1):
        if handle is not None:
            handle.truncate(handle.tell() // 2)
            handle.flush()
        os.kill(os.getpid(), signal.SIGKILL)
