"""Disable AMX on virtual machines that report it but do not support it."""

import os
from pathlib import Path

# CPUID leaf with the size of AMX tiles.
TILE_LEAF = 0x1D
LIMIT, BELOW_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
CPUINFO = Path("/proc/cpuinfo")


def tiles_without_size(cpuinfo: str) -> bool:
    """Whether a processor reports AMX without the CPUID leaf of its tile size.

    Some virtual machines pass on the flag but not the leaf. oneDNN then assumes a size of zero,
    and products in bfloat16, such as those of Muon, fail or crash with an illegal instruction.

    Args:
        cpuinfo: content of /proc/cpuinfo; empty on other systems than Linux.
    """
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    first = {name.strip(): value for name, _, value in lines}
    last_leaf = first.get("cpuid level", "").strip()
    return (
        "amx_tile" in first.get("flags", "").split()
        and last_leaf.isdecimal()
        and int(last_leaf) < TILE_LEAF
    )


def leave_out_broken_tiles() -> None:
    """Limit oneDNN to instruction sets without AMX; a limit set by the user is respected.

    oneDNN reads the limit at its first product, so calibrant must be imported before that.
    """
    if LIMIT not in os.environ and tiles_without_size(read_cpuinfo()):
        os.environ[LIMIT] = BELOW_TILES


def read_cpuinfo() -> str:
    """Read /proc/cpuinfo; empty on other systems than Linux."""
    try:
        return CPUINFO.read_text(errors="replace")
    except OSError:
        return ""
