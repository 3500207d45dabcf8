"""What the pages in docs have in common: tables, versions and the machine."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

LIBRARIES = (
    "torch",
    "numpy",
    "scipy",
    "torchmetrics",
    "netcal",
    "relplot",
    "uncertainty-calibration",
    "scikit-learn",
    "probmetrics",
    "curvlinops-for-pytorch",
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table whose columns are also aligned as plain text."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def versions(libraries: Sequence[str] = LIBRARIES) -> str:
    """Return one line with the version of Python, calibrant and each library compared with."""
    named = [f"{name} {version}" for name in ("calibrant", *libraries) if (version := _found(name))]
    return ", ".join([f"Python {platform.python_version()}", *named])


def _found(name: str) -> str | None:
    """Version of a library; None where it is not installed, as in our own environment."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine() -> str:
    """Return one line with the processor, the cores this process may use and torch's threads."""
    cores = len(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    counts = f"{cores} core{'s' * (cores > 1)}, {threads} thread{'s' * (threads > 1)}"
    return f"{_processor()}, {counts} for torch"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
