"""The current state of a study, whether it is finished, killed or running."""

from dataclasses import asdict
from pathlib import Path

from calibrant.report.saved import Saved, read_saved, saved_from
from calibrant.study.folder import CELLS, STUDY, gathered, lists_cells, put_together


def read_snapshot(folder: Path) -> Saved:
    """Read the current state; nothing is written."""
    if not _has_cells(folder):
        return read_saved(folder)
    rows, cells = gathered(folder)
    return saved_from(folder, cells, [asdict(row) for row in rows])


def update_snapshot(folder: Path) -> None:
    """Write the rows and states of all runs, which a study writes only at its end."""
    if _has_cells(folder):
        put_together(folder)


def _has_cells(folder: Path) -> bool:
    """Whether the folders of the runs can be read, not only the files about all of them."""
    if not (folder / STUDY).exists():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{STUDY}"))
        if inside:
            raise FileNotFoundError(
                f"{folder} is a folder of studies ({', '.join(inside[:5])}): name one of them, or "
                "give --serve"
            )
    copied = (folder / CELLS).exists() and not (folder / "cells").is_dir()
    return (folder / STUDY).exists() and not copied and lists_cells(folder)
