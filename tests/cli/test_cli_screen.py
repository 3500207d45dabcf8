import io
import sys
import threading

import pytest

from calibrant.cli import screen


@pytest.mark.parametrize(("patience", "said"), [(1e9, ""), (0.0, "reading a file ...\n")])
def test_away_from_a_terminal_only_long_work_says_one_line(monkeypatch, patience, said):
    printed = Printed()
    monkeypatch.setattr(screen, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", printed)
    with screen.progress(3, "reading a file") as step:
        step()
        if said:
            assert printed.flushed.wait(60)
    assert printed.getvalue() == said


class Printed(io.StringIO):
    """A stream that tells when something was printed to it."""

    def __init__(self):
        super().__init__()
        self.flushed = threading.Event()

    def flush(self):
        if self.getvalue():
            self.flushed.set()


def test_on_a_terminal_a_bar_moves_and_vanishes(capsys, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal)
    with screen.progress(2, "resampling 2 times") as step:
        step()
        step()
    drawn = terminal.getvalue()
    assert "resampling 2 times" in drawn
    assert "2/2" in drawn
    assert drawn.endswith("\x1b[2K")
    assert capsys.readouterr().out == ""


def test_json_refuses_what_it_cannot_hold(capsys):
    screen.show_json({"a": [float("inf"), (1, float("nan"))], "b": "ü"})
    assert '"a": [\n    null' in capsys.readouterr().out
    with pytest.raises(TypeError):
        screen.show_json({"a": object()})


def test_markup_and_long_lines_are_printed_as_they_are(capsys):
    screen.say("[bold]x[/bold]" * 30)
    screen.show_table(("name",), [["[red]y"]])
    out = capsys.readouterr().out
    assert out.startswith("[bold]x[/bold]" * 30 + "\n")
    assert "[red]y\n" in out
