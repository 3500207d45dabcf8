"""`calibrant report`: the page of a study, drawn again from its saved files."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import options
from calibrant.cli.screen import say


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="Folder of the study; with --serve, also of several."),
    ] = Path("runs"),
    text: Annotated[
        bool, typer.Option("--text", help="Print the verdict and the table, write nothing.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Show it in a browser of this machine; it follows a running study."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            help="Of --serve; 0 is any that is free.", callback=options.within("--port", 0, 65535)
        ),
    ] = 8765,
) -> None:
    """Write the page of a study from what is finished of it; nothing is trained.

    The page needs no network: send it to a colleague as it is.
    """
    if serve:
        _serve(folder, port)
        return
    from calibrant.report.study_page import study_page
    from calibrant.study.folder import collect, read_study
    from calibrant.study.store import NAME, Store

    if (folder / NAME).exists():
        # Rows are put together at the end of a run: one under way, or killed, has only parts.
        with Store.open(folder, create=False) as store:
            collect(read_study(folder), store)
    if text:
        from calibrant.cli.report_output import show_report
        from calibrant.report.saved import read_saved

        show_report(read_saved(folder))
        return
    say(f"written: {study_page(folder)}")


def _serve(folder: Path, port: int) -> None:
    from calibrant.cli.serving import Server

    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: name one with studies in it")
    with Server(folder, port) as server:
        say(f"{server.url} shows {len(server.studies())} studies; end it with Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
