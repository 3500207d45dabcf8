"""What a killed study and an undisturbed one must have alike."""

from pathlib import Path

NAMES = ("rows.jsonl", "rows.csv", "weights.pt", "history.jsonl", "val.npz", "test.npz")


def contents(folder: Path) -> dict[str, bytes]:
    """Rows of the study, and everything of its cells that is promised to be the same."""
    paths = [path for path in folder.rglob("*") if path.name in NAMES]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}
