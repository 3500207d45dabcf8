"""Virtual machines that promise tiles of AMX and do not say how large they are."""

import os
import subprocess
import sys

import pytest

from calibrant import amx_workaround
from calibrant.amx_workaround import leave_out_broken_tiles, tiles_without_size
from calibrant.cli.doctor import tile_state


def cpuinfo(*, level="28", flags="fpu avx512f amx_bf16 amx_tile"):
    one = f"processor\t: 0\nmodel name\t: Some: (R) One\ncpuid level\t: {level}\nflags\t\t: {flags}"
    return f"{one}\n\n{one.replace(': 0', ': 1')}\n\n"


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Start anew, without a limit, on a machine that says this of itself."""

    def said(text, limit=None):
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(amx_workaround, "CPUINFO", tmp_path / "cpuinfo")
        # Set first, so that what is written here is taken back.
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit or "")
        if limit is None:
            del os.environ["ONEDNN_MAX_CPU_ISA"]
        leave_out_broken_tiles()
        return os.environ.get("ONEDNN_MAX_CPU_ISA")

    return said


@pytest.mark.parametrize(
    "text",
    [
        cpuinfo(level="29"),
        cpuinfo(level="32"),
        cpuinfo(flags="fpu avx512f avx512_bf16"),
        cpuinfo(flags="fpu no_amx_tile_here"),
        cpuinfo(level="?"),
        "cpuid level\t: 28\n\nflags\t: amx_tile\n",
        "Processor : ARMv8\n",
        "",
    ],
)
def test_other_processors_are_not_limited(on, text):
    assert not tiles_without_size(text)
    assert on(text) is None


def test_tiles_without_a_size_are_disabled_but_a_limit_of_the_user_is_respected(on):
    assert on(cpuinfo()) == "AVX512_CORE_FP16"
    assert on(cpuinfo(), limit="AVX2") == "AVX2"


def test_without_cpuinfo_nothing_is_limited(monkeypatch, tmp_path):
    monkeypatch.setattr(amx_workaround, "CPUINFO", tmp_path / "none")
    assert amx_workaround.read_cpuinfo() == ""


def test_the_doctor_reports_broken_tiles_only(on):
    on(cpuinfo())
    assert tile_state(cpuinfo()) == [
        (
            "processor",
            "claims AMX but not its size; bfloat16 works with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16",
        )
    ]
    assert tile_state(cpuinfo(level="32")) == []


def test_products_in_bfloat16_work_after_the_import():
    code = "import torch, calibrant; a = torch.eye(64, dtype=torch.bfloat16); print((a @ a).sum())"
    environment = {name: each for name, each in os.environ.items() if not name.startswith("ONEDNN")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "64" in done.stdout
