"""`calibrant doctor`: what is installed and what this machine can do."""

import os
import platform
import sys
from importlib import metadata

import typer

from calibrant import __version__
from calibrant.amx_workaround import LIMIT, read_cpuinfo, tiles_without_size
from calibrant.cli.screen import say, show_table
from calibrant.data_folder import VARIABLE, data_folder

# What each extra installs.
EXTRAS = {
    "cli": ("typer", "rich"),
    "report": ("matplotlib", "jinja2"),
    "audit": ("pyarrow", "safetensors"),
    "tables": ("ibis-framework", "duckdb", "sqlglot"),
    "torchmetrics": ("torchmetrics",),
    "export": ("onnx", "onnxruntime"),
    "sklearn": ("scikit-learn",),
    "lightning": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow-skinny", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "images": ("pillow",),
    "study": ("pydantic",),
    "datasets": ("datasets",),
    "cluster": ("distributed",),
}


def doctor() -> None:
    """Show what is installed and what this machine can do."""
    works, torch_line = torch_state()
    needed = {name: version_of(name) for name in ("numpy", "scipy", "jaxtyping", "threadpoolctl")}
    rows = [
        ("calibrant", __version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", torch_line),
        *((name, version or "missing") for name, version in needed.items()),
        *((f"[{extra}]", extra_state(extra)) for extra in EXTRAS),
        ("cores", str(cores())),
        *tile_state(read_cpuinfo()),
        ("data folder", data_state()),
    ]
    show_table(("what", "found"), rows)
    if not works or None in needed.values():
        say("a required package is missing or broken: pip install calibrant")
        raise typer.Exit(1)


def version_of(package: str) -> str | None:
    """The installed version, without importing the package; None if it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def extra_state(extra: str) -> str:
    """Versions of what an extra installs, or how to install it."""
    found = {package: version_of(package) for package in EXTRAS[extra]}
    parts = [f"{package} {version or 'missing'}" for package, version in found.items()]
    remedy = f": pip install 'calibrant[{extra}]'" if None in found.values() else ""
    return ", ".join(parts) + remedy


def torch_state() -> tuple[bool, str]:
    """Whether torch works, and its version, build, threads and devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return False, f"fails to import: {' '.join(str(error).split())}"
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = f"CUDA {torch.version.cuda}, {devices} devices" if torch.version.cuda else "no CUDA"
    return True, f"{torch.__version__}, {cuda}, {torch.get_num_threads()} threads"


def cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def tile_state(cpuinfo: str) -> list[tuple[str, str]]:
    """A line where the processor claims AMX that does not work; none where there is no trouble."""
    if not tiles_without_size(cpuinfo):
        return []
    limit = f"{LIMIT}={os.environ.get(LIMIT)}"
    return [("processor", f"claims AMX but not its size; bfloat16 works with {limit}")]


def data_state() -> str:
    """Whether real data for tests and studies is there; never where the environment says it is."""
    folder = data_folder()
    place = f"${VARIABLE}" if os.environ.get(VARIABLE) else str(folder)
    if not folder.is_dir():
        return f"not found at {place}; only tests and studies on real data need it"
    return f"found at {place}, {sum(1 for _ in folder.glob('*.npz'))} npz files"
