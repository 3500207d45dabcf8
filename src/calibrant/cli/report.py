"""`calibrant report`: the page of a study, from its saved files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from calibrant.cli import options, printable, screen
from calibrant.cli.screen import say

if TYPE_CHECKING:
    from calibrant.report.findings import Findings
    from calibrant.report.saved import Saved


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
    from calibrant.cli.snapshot import read_snapshot, update_snapshot
    from calibrant.report.study_page import study_page

    if text:
        show_report(read_snapshot(folder))
        return
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


def show_report(saved: "Saved") -> None:
    """Print what a study found; as wide as the terminal, or as it is where there is none."""
    from calibrant.report.findings import findings

    _say(saved.name, "bold")
    if saved.about:
        _say(saved.about, "dim")
    for each in findings(saved):
        _show(each)


def _show(found: "Findings") -> None:
    print()
    _say(found.group.title, "bold")
    _say(f"{found.verdict.headline}.", "bold")
    for sentence in found.verdict.sentences:
        _say(sentence)
    if found.comparison.combinations:
        print()
        hidden = screen.print_table(found.comparison.as_table(), keep=3)
        _say(f"{screen.LEGEND}. {found.comparison.note}")
        if hidden:
            _say(f"Hidden, terminal too narrow: {', '.join(hidden)}.")
        print()
    if found.weak_spots:
        _say("Weak spots", "bold")
    for sentence in found.weak_spots:
        _say(f"- {sentence}")


def _say(text: str, style: str = "") -> None:
    """Print a paragraph; a terminal breaks it between words."""
    screen.console().print(Text(printable(text), style=style))
