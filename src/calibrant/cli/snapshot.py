"""A study as it stands this moment, whether it is finished, killed or under way."""

from dataclasses import asdict
from pathlib import Path

from calibrant.report.saved import Saved, read_saved, saved_from
from calibrant.study.folder import CELLS, STUDY, gathered, lists_cells, put_together


def standing(folder: Path) -> Saved:
    """What is known now; nothing is written."""
    if not _has_cells(folder):
        return read_saved(folder)
    rows, cells = gathered(folder)
    return saved_from(folder, cells, [asdict(row) for row in rows])


def brought_up_to_date(folder: Path) -> None:
    """Write rows and cells as they are now: they are put together only at the end of a run."""
    if _has_cells(folder):
        put_together(folder)


def _has_cells(folder: Path) -> bool:
    """Whether there is more to read than what was put together."""
    if not (folder / STUDY).exists():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{STUDY}"))
        if inside:
            raise FileNotFoundError(
                f"{folder} is no study but has some, {', '.join(inside[:5])}: name one, or all of "
                "them by --serve"
            )
    copied = (folder / CELLS).exists() and not (folder / "cells").is_dir()
    return (folder / STUDY).exists() and not copied and lists_cells(folder)
