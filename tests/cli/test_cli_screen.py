import sys

import pytest

from calibrant.cli import screen


def test_away_from_a_terminal_quick_work_is_silent(capsys):
    with screen.progress(3, "resampling 3 times") as step:
        for _ in range(3):
            step()
    assert capsys.readouterr() == ("", "")


def test_away_from_a_terminal_long_work_says_one_line(capsys, monkeypatch):
    monkeypatch.setattr(screen, "PATIENCE", -1.0)
    with screen.progress(3, "resampling 3 times") as step:
        for _ in range(3):
            step()
    assert capsys.readouterr() == ("", "resampling 3 times ...\n")


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


def test_markup_in_names_is_printed_as_it_is(capsys):
    screen.say("[bold]x[/bold]")
    screen.show_table(("name",), [["[red]y"]])
    out = capsys.readouterr().out
    assert "[bold]x[/bold]\n" in out
    assert "[red]y\n" in out


def test_a_long_line_is_not_broken_away_from_a_terminal(capsys):
    screen.say("x" * 300)
    assert capsys.readouterr().out == "x" * 300 + "\n"
