"""How to start another process of this package with the packages of this one."""

import os
import sys
from collections.abc import Sequence


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """Command of a child process; modules that lie in the current folder are not imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Environment of a child process, which finds the same packages as this one."""
    # An empty entry stands for the current folder, whose files may be anybody's.
    path = os.pathsep.join(each for each in sys.path if each)
    return {**os.environ, "PYTHONPATH": path}
