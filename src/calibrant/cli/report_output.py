"""What `calibrant report --text` shows: verdict, table and weak spots of each group."""

from typing import TYPE_CHECKING

from rich.text import Text

from calibrant.cli import printable, screen

if TYPE_CHECKING:
    from calibrant.report.comparison import Comparison
    from calibrant.report.findings import Findings
    from calibrant.report.saved import Saved


def show_report(saved: "Saved") -> None:
    """Print what a study found; as wide as the terminal, or as it is where there is none."""
    from calibrant.report.findings import findings

    found = findings(saved)
    _say(saved.name, "bold")
    if saved.about:
        _say(saved.about, "dim")
    for each in found:
        _show(each)


def _show(found: "Findings") -> None:
    print()
    _say(found.group.title, "bold")
    _say(f"{found.verdict.headline}.", "bold")
    for sentence in found.verdict.sentences:
        _say(sentence)
    if found.comparison.lines:
        print()
        _show_table(found.comparison)
    if found.weak_spots:
        _say("Weak spots", "bold")
    for sentence in found.weak_spots:
        _say(f"- {sentence}")


def _show_table(comparison: "Comparison") -> None:
    hidden = screen.print_table(comparison.as_table(), keep=3)
    _say(f"{screen.LEGEND}. {comparison.note}")
    if hidden:
        _say(f"Hidden, terminal too narrow: {', '.join(hidden)}.")
    print()


def _say(text: str, style: str = "") -> None:
    """Print a paragraph; a terminal breaks it between words."""
    screen.console().print(Text(printable(text), style=style))
