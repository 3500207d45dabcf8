"""`calibrant report`: the page of a study, drawn again from its saved files."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.screen import say


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of the study.")],
) -> None:
    """Write the page of a study; nothing is trained or measured again."""
    from calibrant.report.study_page import study_page

    say(f"written: {study_page(folder)}")
