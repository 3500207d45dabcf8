"""What torch is told to leave alone on virtual machines that promise more than they have."""

import os
from pathlib import Path

# The CPUID leaf that says how large the tiles of AMX are, in bytes and rows.
TILE_LEAF = 0x1D
LIMIT, BELOW_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
CPUINFO = Path("/proc/cpuinfo")


def tiles_without_size(cpuinfo: str) -> bool:
    """Whether a processor claims AMX and cannot say how large its tiles are.

    Some virtual machines hand on the flag and end their leaves before that of the tiles. The
    library below torch then takes their size for zero, and products in bfloat16, those of Muon
    among them, fail or kill the process with an illegal instruction.

    Args:
        cpuinfo: what Linux says of the processors; empty elsewhere.
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
    """Tell the library below torch to leave such tiles out; a limit of your own stays.

    It looks once, at its first product: one before the import of calibrant is beyond help.
    """
    if LIMIT not in os.environ and tiles_without_size(read_cpuinfo()):
        os.environ[LIMIT] = BELOW_TILES


def read_cpuinfo() -> str:
    """What Linux says of the processors; nothing elsewhere."""
    try:
        return CPUINFO.read_text(errors="replace")
    except OSError:
        return ""
