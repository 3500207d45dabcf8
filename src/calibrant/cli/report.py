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
    if text:
        from calibrant.cli.report_output import show_report
        from calibrant.cli.snapshot import standing

        show_report(standing(folder))
        return
    from calibrant.cli.snapshot import brought_up_to_date
    from calibrant.report.study_page import study_page

    brought_up_to_date(folder)
    say(f"written: {study_page(folder)}")


def _serve(folder: Path, port: int) -> None:
    from calibrant.cli.serving import Server, counted

    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: name one with studies in it")
    try:
        server = Server(folder, port)
    except OSError as error:
        raise ValueError(f"port {port} cannot be had ({error.strerror}): try --port 0") from error
    with server:
        say(f"{server.url} shows {counted(len(server.studies()))}; end it with Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
