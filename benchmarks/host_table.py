"""Rewrite docs/hosts.md: the versions that are tested, and the lines that each host needs.

Run with `python -m benchmarks.host_table`.
"""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.pages import table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "hosts.md"
# Host, its package, and the page about it.
HOSTS = (
    ("Lightning", "lightning", "lightning.md"),
    ("PyTorch Lightning", "pytorch-lightning", "lightning.md"),
    ("Hugging Face Transformers", "transformers", "transformers.md"),
    ("Hugging Face Accelerate", "accelerate", "transformers.md"),
    ("scikit-learn", "scikit-learn", "scikit-learn.md"),
    ("LightGBM", "lightgbm", "scikit-learn.md"),
    ("XGBoost", "xgboost-cpu", "scikit-learn.md"),
    ("MONAI", "monai", "segmentation.md"),
    ("torchmetrics", "torchmetrics", "metrics.md"),
    ("TensorBoard", "tensorboard", "lightning.md"),
    ("MLflow", "mlflow-skinny", "lightning.md"),
    ("Weights & Biases", "wandb", "lightning.md"),
    ("ONNX Runtime", "onnxruntime", "calibrators.md"),
    ("Ibis", "ibis-framework", "tables.md"),
    ("DuckDB", "duckdb", "tables.md"),
    ("Spark", "pyspark", "tables.md"),
    ("PyTorch", "torch", "training.md"),
)
# Hosts that no test runs or installs: how far each was checked, and the page about it.
OTHERS = (
    ("lm-evaluation-harness", "0.4.13: its logs are read in tests", "language-models.md"),
    ("OpenAI interface", "types of openai 3.51.0, not called", "language-models.md"),
    ("vLLM", "0.33.0: source read, not run", "language-models.md"),
    ("mmsegmentation", "not tested", "segmentation.md"),
)
# The extra for work on calibrant itself, which users of a host do not need.
OWN = "dev"
# Pages for one kind of user each; they start with a diff.
GUIDES = (
    "lightning",
    "transformers",
    "scikit-learn",
    "prior-shift",
    "multi-label",
    "language-models",
    "segmentation",
)
HEAD = """# Hosts and versions

With this page you can see whether your framework is tested, in which version, and which lines it
needs. "Tested" is the version in `constraints.txt`, with which all tests run, unless it says
otherwise. "Admitted" is what `pyproject.toml` allows. Where "extra" is "-", no extra of calibrant
installs the host: install it yourself.

"""


def tested() -> dict[str, str]:
    """Versions in constraints.txt, by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def admitted() -> dict[str, tuple[str, str]]:
    """Versions that an extra admits, and the first extra that declares the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, tuple[str, str]] = {}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in map(Requirement, lines):
            found.setdefault(requirement.name, (str(requirement.specifier), extra))
    return found


def two_lines(guide: str) -> str:
    """Title of a page, and the first diff on it."""
    text = (DOCS / f"{guide}.md").read_text()
    title = text.partition("\n")[0].lstrip("# ")
    diff = re.search(r"^```diff\n.*?^```$", text, re.MULTILINE | re.DOTALL)
    if diff is None:
        raise ValueError(f"docs/{guide}.md must start with a ```diff block, and has none")
    return f"## {title}\n\n{diff[0]}\n\nMore: [{guide}.md]({guide}.md)."


def page() -> str:
    """The page, from the files it is about."""
    versions, extras = tested(), admitted()
    rows = []
    for host, package, guide in HOSTS:
        specifier, extra = extras[package]
        extra = "-" if extra in ("", OWN) else extra
        rows.append((host, versions[package], specifier, extra, f"[{guide}]({guide})"))
    rows += [(host, checked, "-", "-", f"[{guide}]({guide})") for host, checked, guide in OTHERS]
    listed = table(("host", "tested", "admitted", "extra", "page"), rows)
    return HEAD + "\n\n".join([listed, *map(two_lines, GUIDES)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
