"""`calibrant report`: the page of a study, drawn again from its saved files."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.screen import say


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of the study.")],
) -> None:
    """Write the page of a study from what is finished of it; nothing is trained."""
    from calibrant.report.study_page import study_page
    from calibrant.study.folder import collect, read_study
    from calibrant.study.store import NAME, Store

    if (folder / NAME).exists():
        # Rows are put together at the end of a run: one under way, or killed, has only parts.
        with Store.open(folder, create=False) as store:
            collect(read_study(folder), store)
    say(f"written: {study_page(folder)}")
