"""The architecture: who may import whom."""

import ast
from functools import cache
from pathlib import Path

# Rightwards only; folders of one set do not import each other. Integrations may import all but cli.
LAYERS = [
    {"cli"},
    {"tables"},
    {"report", "study", "export"},
    {"training"},
    {"methods"},
    {"calibrators", "curvature", "data", "models"},
    {"metrics"},
    {"losses", "language_models"},
    {"multi_label"},
    {"predictions", "multi_label_files"},
    {"prediction_files", "label_matrix"},
    {"score_array", "array_names", "binary_labels", "choices"},
    {"example_stats", "checks", "files"},
    {"shapes", "extras", "model_modes", "amx_workaround", "scoped_warnings", "child_processes"}
    | {"table_values", "deprecated", "setting_errors", "data_folder", "advice", "progress"}
    | {"example_columns"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
RANK["integrations"] = 0.5
# Heavy or optional packages, which only these folders may load at import time.
OPTIONAL = {"matplotlib", "typer", "rich", "pyarrow", "safetensors", "torchmetrics", "sklearn"}
OPTIONAL |= {"onnx", "onnxruntime", "PIL", "lightning", "pytorch_lightning", "transformers"}
OPTIONAL |= {"tensorboard", "mlflow", "wandb", "lightgbm", "xgboost", "monai"}
OPTIONAL |= {"datasets", "pydantic", "distributed", "ibis"}
ROOT = Path(__file__).parents[1] / "src" / "calibrant"
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in RANK)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == "calibrant":
        return [f"calibrant.{alias.name}" for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_downwards():
    wrong = []
    for path in FILES:
        here = layer_of(path)
        for name in (each for node in ast.walk(tree_of(path)) for each in imported(node)):
            there = (*name.split("."), "")[1]
            if name.startswith("calibrant.") and there in RANK:
                allowed = there == here or RANK[there] > RANK[here]
                wrong += [] if allowed else [f"{path.relative_to(ROOT)} imports {name}"]
    assert not wrong


def test_extras_are_loaded_only_when_used():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name} at the top"
        for path in FILES
        if layer_of(path) not in {"cli", "integrations"} and path.name != "spec_tables.py"
        for node in tree_of(path).body
        for name in imported(node)
        if name.split(".")[0] in OPTIONAL
    ]
    assert not wrong


def test_every_folder_has_a_layer():
    named = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.name[0] not in "_."}
    assert named - {"py.typed"} <= set(RANK)


def test_no_text_below_the_command_line_names_its_modules():
    """A child process started by name would be an import that points upwards."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        if layer_of(path) in {"study", "training", "child_processes"}
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and "calibrant.cli" in str(node.value)
    ]
    assert not wrong
