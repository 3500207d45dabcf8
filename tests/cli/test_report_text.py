"""What `calibrant report --text` prints, with and without a terminal."""

import json
import re
import sys
from pathlib import Path

import pytest

from calibrant.cli.report import show_report
from calibrant.report.saved import read_saved

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from saved_studies import DATASET, MODEL, OPTIMIZER, REASON, UNTRUSTED, small_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("text") / "study"
    return small_study(where, metrics=["accuracy", "nll", "ece"], examples=90)


def test_verdict_table_weak_spots_and_failed_cells_are_printed_in_this_order(folder, capsys):
    show_report(read_saved(folder))
    out = capsys.readouterr().out
    parts = (
        'small <i>study</i> & "friends"\n',
        "focal 3 without calibrator",
        "the lowest of 6 combinations",
        "1 of 6 runs has no result.\n",
        "\nmethod ",
        "* best, = not significantly worse, ? no comparison possible.",
        "\nWeak spots\n- ",
        "for rare classes",
        f"- diverged: {DATASET}, {MODEL}, {OPTIMIZER}, {UNTRUSTED}, seed 1: {REASON}",
    )
    places = [out.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    head = next(line for line in out.splitlines() if line.startswith("method "))
    assert head.split() == ["method", "calibrator", "accuracy", "NLL", "ECE"]
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if line.startswith("focal 3  ")]
    assert len(lines) == 2
    assert lines[0].endswith(("*", "="))


def test_a_terminal_shows_the_metrics_that_fit_and_names_the_others(folder, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "128")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    show_report(read_saved(folder))
    out = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, out.splitlines())) <= 128
    assert "Hidden, terminal too narrow: ECE." in out
    assert "the lowest of 6" in " ".join(out.split())


def test_a_narrow_terminal_cuts_no_number(folder, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    show_report(read_saved(folder))
    assert "Hidden, terminal too narrow: NLL, ECE." in " ".join(terminal.getvalue().split())


def test_no_name_can_send_commands_to_a_terminal(folder, tmp_path, capsys):
    study = json.loads((folder / "study.json").read_text())
    study["study"] |= {"name": "a\x1b[2Jb", "about": "c\rd [bold]e[/bold]"}
    (tmp_path / "study.json").write_text(json.dumps(study))
    cells = [{**each, "status": "failed", "reason": "x\x1b]0;y\x07"} for each in _cells(folder)]
    (tmp_path / "cells.json").write_text(json.dumps({"cells": cells}))
    (tmp_path / "rows.jsonl").write_text("")
    show_report(read_saved(tmp_path))
    out = capsys.readouterr().out
    assert "a [2Jb\nc d [bold]e[/bold]\n" in out
    assert "All runs failed" in out
    assert not set(out) & {"\x1b", "\r", "\x07"}


def _cells(folder):
    return json.loads((folder / "cells.json").read_text())["cells"]
