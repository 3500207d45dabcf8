"""What an install brings: the light core on a bare machine, each extra, the source archive."""

import importlib
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# What each extra lets a user do, as the import that shows it.
PROMISES = {
    "cli": ["calibrant.cli.app"],
    "report": ["matplotlib", "calibrant.report.figures.reliability"],
    "audit": ["calibrant.cli.audit", "calibrant.report", "pyarrow.parquet", "safetensors"],
    "tables": ["ibis", "duckdb", "polars", "calibrant.tables"],
    "torchmetrics": ["calibrant.integrations.torchmetrics"],
    "export": ["onnx", "onnxruntime", "calibrant.export"],
    "sklearn": ["calibrant.integrations.sklearn"],
    "pandas": ["pandas"],
    "multicalibration": ["lightgbm"],
    "lightning": ["lightning"],
    "transformers": ["calibrant.integrations.transformers", "accelerate"],
    "tensorboard": ["tensorboard"],
    "mlflow": ["mlflow", "sqlalchemy", "alembic"],
    "wandb": ["wandb"],
    "docs": ["mkdocs", "mkdocstrings", "material"],
    "images": ["PIL.Image"],
    "datasets": ["datasets", "PIL.Image"],
    "cluster": ["distributed", "calibrant.study.cluster"],
    "study": ["pydantic", "calibrant.cli.train", "calibrant.training", "sklearn"],
    "all": [
        "calibrant.cli.app",
        "calibrant.integrations.torchmetrics",
        "calibrant.integrations.sklearn",
        "onnxruntime",
    ],
    "dev": ["pytest", "hypothesis", "beartype", "sklearn", "mypy", "hatchling"],
}
# The packages that these imports, and the messages about missing ones, rely on.
AUDIT = {"typer", "rich", "matplotlib", "pyarrow", "safetensors"}
OTHERS = {"torchmetrics", "onnx", "onnxruntime", "scikit-learn", "pillow", "pydantic", "lightgbm"}
BRINGS = {
    "cli": {"typer", "rich"},
    "report": {"matplotlib", "jinja2"},
    "audit": AUDIT,
    "tables": AUDIT | {"ibis-framework", "duckdb"},
    "torchmetrics": {"torchmetrics"},
    "export": {"onnx", "onnxruntime"},
    "sklearn": {"scikit-learn"},
    "pandas": {"pandas"},
    "multicalibration": {"lightgbm"},
    "lightning": {"lightning"},
    "transformers": {"transformers", "accelerate"},
    "tensorboard": {"tensorboard"},
    "mlflow": {"mlflow-skinny", "sqlalchemy", "alembic"},
    "wandb": {"wandb"},
    "docs": {"mkdocs-material", "mkdocstrings"},
    "images": {"pillow"},
    "study": {"typer", "rich", "matplotlib", "scikit-learn", "pillow", "pydantic"},
    "datasets": {"datasets", "pillow"},
    "cluster": {"distributed", "pydantic"},
    "all": AUDIT | OTHERS,
    "dev": AUDIT
    | OTHERS
    | {"distributed", "pytest", "hypothesis", "beartype", "ruff", "mypy", "hatchling"},
}

USE_THE_CORE = """
import calibrant
from calibrant import Predictions, metrics
p = Predictions([[2.0, 0.0], [0.0, 1.0]] * 20, [0, 0] * 20)
assert abs(metrics.ece(p) - 0.4251) < 1e-3, metrics.ece(p)
print(metrics.interval(metrics.ece, p, resamples=20))
p.save("p.npz")
assert len(Predictions.load("p.npz")) == 40
p.save("p.csv")
assert len(Predictions.load("p.csv")) == 40
from calibrant import calibrators, export
t = calibrators.TemperatureScaling(classes=2, temperature=1.7)
calibrators.save(t, "t.json")
assert calibrators.load("t.json").temperature == t.temperature
export.as_module(t)(p.logits)
"""
USE_A_CALIBRATOR = """
from calibrant.calibrators import TemperatureScaling
from calibrant.export import export_onnx
calibrator = TemperatureScaling(classes=2, temperature=2.0)
"""

MISSING = {
    "p.save('p.parquet')": ("pyarrow", "calibrant[audit]"),
    "p.save('p.safetensors')": ("safetensors", "calibrant[audit]"),
    "from calibrant.report import reliability_diagram as draw; draw(p)": (
        "matplotlib",
        "calibrant[report]",
    ),
    "import calibrant.integrations.torchmetrics": ("torchmetrics", "calibrant[torchmetrics]"),
    "import calibrant.integrations.sklearn": ("scikit-learn", "calibrant[sklearn]"),
    USE_A_CALIBRATOR + "export_onnx(calibrator, 'c.onnx')": ("onnx", "calibrant[export]"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_installs_its_packages(extra):
    for module in PROMISES[extra]:
        importlib.import_module(module)


def declared(extra):
    """Names of all packages that an extra declares, also through other extras of ours."""
    names = set()
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.name == "calibrant":
            names |= set().union(*map(declared, requirement.extras))
        else:
            names.add(requirement.name)
    return names


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_declares_its_packages(extra):
    # The imports above prove nothing about this: here every package is installed anyway.
    assert BRINGS[extra] <= declared(extra)


@pytest.mark.parametrize(("package", "remedy"), MISSING.values())
def test_every_advice_of_a_message_names_an_extra(package, remedy):
    (extra,) = Requirement(remedy).extras
    assert package in declared(extra)


def test_the_source_archive_can_be_tested_built_and_read(tmp_path):
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "Makefile",
        "constraints.txt",
        "CONTRIBUTING.md",
        "docs/metrics.md",
        "docs_hooks/formulas.py",
        "mkdocs.yml",
        "benchmarks/__main__.py",
        ".ci/run",
        "tests/conftest.py",
        "src/calibrant/py.typed",
    ):
        assert name in names, name


@pytest.mark.slow
def test_the_examples_of_a_single_file_run():
    # One whose examples print or return classes of its own: it must not be imported twice.
    file = ROOT / "src" / "calibrant" / "metrics" / "resampling" / "intervals.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """Build the wheel and install it, without extras, in an environment of its own."""
    folder = tmp_path_factory.mktemp("install")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run([python, "-m", "pip", *install], check=True, capture_output=True)
    return python


def run(python, folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_the_light_core_needs_no_extra(bare_python, tmp_path):
    done = run(bare_python, tmp_path, "-c", USE_THE_CORE)
    assert done.returncode == 0, done.stderr
    found = run(bare_python, tmp_path, "-m", "pip", "list", "--format=freeze").stdout
    assert "torch==" in found
    for package in ("matplotlib", "typer", "rich", "pyarrow", "torchmetrics", "torchvision"):
        assert f"\n{package}==" not in f"\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "words"), MISSING.items(), ids=[w[0] for w in MISSING.values()])
def test_a_missing_extra_says_what_to_install(bare_python, tmp_path, code, words):
    setup = "from calibrant import Predictions; p = Predictions([[2.0, 0.0]], [0])\n"
    done = run(bare_python, tmp_path, "-c", setup + code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    for word in words:
        assert word in last


@pytest.mark.slow
def test_the_command_line_says_what_it_needs(bare_python, tmp_path):
    done = run(bare_python.with_name("calibrant"), tmp_path, "--help")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "pip install 'calibrant[cli]'" in done.stderr


@pytest.mark.slow
def test_the_wheel_is_typed(bare_python, tmp_path):
    code = "import calibrant, pathlib; print(*pathlib.Path(calibrant.__file__).parent.iterdir())"
    assert "py.typed" in run(bare_python, tmp_path, "-c", code).stdout
