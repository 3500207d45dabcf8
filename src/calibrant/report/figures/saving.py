"""Write a figure to a file, whole and repeatable."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.files.atomic import replacing

if TYPE_CHECKING:
    import matplotlib.figure

# What to leave out of each kind of file, so that the same figure gives the same bytes.
KINDS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
DPI = 160


def save(figure: "matplotlib.figure.Figure", path: str | Path) -> Path:
    """Write a PNG, SVG or PDF, by the ending of `path`; all or nothing.

    The folder of `path` is made if its own parent is there. The same figure gives the same bytes.

    Returns:
        The path written.
    """
    target = Path(path)
    check_ending(target)
    from matplotlib import rc_context

    if not target.parent.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: no folder {target.parent.parent}")
    target.parent.mkdir(exist_ok=True)
    kind = target.suffix.lower()
    with replacing(target) as handle, rc_context({"svg.hashsalt": "calibrant"}):
        figure.savefig(handle, format=kind[1:], dpi=DPI, metadata=KINDS[kind])
    return target


def check_ending(path: Path) -> None:
    """Refuse a kind of file that cannot be written."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"a figure must end in {', '.join(KINDS)}; got {str(path)!r}")
