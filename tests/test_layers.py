"""The architecture: who may import whom."""

import ast
from pathlib import Path

import pytest

# Rightwards only; folders of one set do not import each other. Integrations may import all but cli.
LAYERS = [
    {"cli"},
    {"report", "study", "export"},
    {"training"},
    {"methods"},
    {"calibrators", "curvature", "data", "models"},
    {"metrics"},
    {"losses"},
    {"predictions"},
    {"scores"},
    {"rows", "checks", "files"},
    {"shapes", "extras", "networks", "processor", "scoped_warnings"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
RANK["integrations"] = 0.5
# Heavy or optional packages, which only these folders may load at import time.
OPTIONAL = {"matplotlib", "typer", "rich", "pyarrow", "safetensors", "torchmetrics", "sklearn"}
OPTIONAL |= {"onnx", "onnxruntime", "lightning_fabric", "PIL"}
OPTIONAL |= {"datasets", "pydantic", "distributed"}
ROOT = Path(__file__).parents[1] / "src" / "calibrant"
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in RANK)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == "calibrant":
        return [f"calibrant.{alias.name}" for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    here = layer_of(path)
    for node in ast.walk(ast.parse(path.read_text())):
        for name in imported(node):
            if name.startswith("calibrant.") and name.split(".")[1] in RANK:
                there = name.split(".")[1]
                assert there == here or RANK[there] > RANK[here], f"{here} imports {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_extras_are_loaded_only_when_used(path):
    if layer_of(path) in {"cli", "integrations"}:
        return
    for node in ast.parse(path.read_text()).body:
        for name in imported(node):
            assert name.split(".")[0] not in OPTIONAL, f"{path.name} imports {name} at the top"


def test_every_folder_has_a_layer():
    named = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.name[0] not in "_."}
    assert named - {"py.typed"} <= set(RANK)
