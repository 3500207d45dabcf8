"""`calibrant report`: the page of a study, from its saved files."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import options
from calibrant.cli.screen import say


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY", help="Folder of a study; with --serve, also of several studies."
        ),
    ] = Path("runs"),
    text: Annotated[
        bool, typer.Option("--text", help="Print the recommendation and the table; write nothing.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve the page on this machine; it follows a running study."),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            help="Port of --serve; 0 picks a free port.",
            callback=options.within("--port", 0, 65535),
        ),
    ] = 8765,
) -> None:
    """Write the page of a study from its finished runs; nothing is trained.

    The page is a self-contained HTML file.
    """
    if serve:
        _serve(folder, port)
        return
    if text:
        from calibrant.cli.report_output import show_report
        from calibrant.cli.snapshot import read_snapshot

        show_report(read_snapshot(folder))
        return
    from calibrant.cli.snapshot import update_snapshot
    from calibrant.report.study_page import study_page

    update_snapshot(folder)
    say(f"written: {study_page(folder)}")


def _serve(folder: Path, port: int) -> None:
    from calibrant.cli.serving import Server, counted

    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: name one with studies in it")
    try:
        server = Server(folder, port)
    except OSError as error:
        raise ValueError(f"cannot bind port {port} ({error.strerror}): try --port 0") from error
    with server:
        say(f"{server.url} shows {counted(len(server.studies()))}; stop it with Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")
