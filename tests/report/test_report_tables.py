"""The table of a study as CSV, LaTeX and Markdown: digits, marks, and names that mean harm."""

import csv
import io
import re

import pytest

from calibrant.metrics import Interval
from calibrant.report.comparison import Combination, Comparison
from calibrant.report.differences import Reading
from calibrant.report.downloads import as_csv, as_latex, as_markdown


def reading(value, low, high, mark):
    interval = Interval(value, low, high)
    return Reading("nll", interval, {0: interval}, mark=mark)


def table_of(*names, metrics=("nll", "my_metric")):
    """A best line, and others of which the last metric has no value."""
    none = float("nan")
    lines = [Combination(names[0], "none", {"nll": reading(1.23456, 1.2, 1.27, "best")})]
    lines += [
        Combination(each, "a|b", {"nll": reading(1.5, none, none, "equal")}) for each in names[1:]
    ]
    own = {"nll": reading(2.0, 1.0, 3.0, "worse"), "my_metric": reading(-0.1, -0.2, 0.0, "best")}
    return Comparison("method", metrics, (*lines, Combination("last", "none", own)), (0,))


def test_csv_has_value_ends_mark_and_seeds_of_each_metric_with_all_digits():
    found = list(csv.reader(io.StringIO(as_csv(table_of("a", "b")))))
    ends = [f"{name}{part}" for name in ("nll", "my_metric") for part in ("", *PARTS)]
    assert found[0] == ["method", "calibrator", *ends]
    assert found[1] == ["a", "none", "1.23456", "1.2", "1.27", "best", "1.23456", *[""] * 5]
    assert found[2] == ["b", "a|b", "1.5", "", "", "equal", "1.5", *[""] * 5]
    assert found[3][2:7] == ["2.0", "1.0", "3.0", "worse", "2.0"]
    assert found[3][7:] == ["-0.1", "-0.2", "0.0", "best", "-0.1"]


PARTS = (" low", " high", " mark", " seed 0")


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2", "@SUM(A1)", " \t=1", "\n=1", "\x00=1"])
def test_csv_has_no_formula_for_a_name(name):
    (cell, *_) = list(csv.reader(io.StringIO(as_csv(table_of(name)))))[1]
    assert cell.startswith("'")
    assert cell[1:] == name.strip(" \t\n\x00")
    heads = next(csv.reader(io.StringIO(as_csv(table_of("a", metrics=("nll", name))))))
    assert heads[7].startswith("'")


def test_csv_keeps_every_other_name():
    names = ['say "x", then y', "<script>", "a;b", "ü = 1"]
    found = list(csv.reader(io.StringIO(as_csv(table_of("a", *names)))))
    assert [row[0] for row in found[2:-1]] == names


def test_latex_is_a_booktabs_table_with_the_best_in_bold():
    lines = as_latex(table_of("a", "b")).splitlines()
    assert lines[1] == r"\begin{tabular}{llrr}"
    assert [lines[2], lines[4], lines[-2]] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert lines[-1] == r"\end{tabular}"
    assert lines[3] == r"method & calibrator & NLL & my\_metric \\"
    assert lines[5] == r"a & none & \textbf{1.235} {\scriptsize [1.200, 1.270]} & - \\"
    assert lines[6] == r"b & a\textbar{}b & \textit{1.5000} & - \\"
    assert r"& 2.0 {\scriptsize [1.0, 3.0]} &" in lines[7]


def test_latex_takes_no_command_from_a_name():
    name = '\\input{x} $a$ & 50% #1 a_b ~ ^ <b> | "q"\n\\\\ [1em]*'
    line = as_latex(table_of(name)).splitlines()[5]
    shown = line.partition(" & none")[0]
    # Without what stands for one letter each, nothing is left that LaTeX takes for its own.
    rest = re.sub(r"\\text[a-z]+\{\}|\\[{}$&#_%]|\{\[\}|\{\*\}", "", shown)
    assert not re.search(r"[\\{}$&#_%~^<>|\"\[*]", rest)
    assert shown.count("&") == 1
    assert shown.startswith(r"\textbackslash{}input\{x\}")


def test_markdown_marks_the_best_and_says_what_marks_mean():
    lines = as_markdown(table_of("a", "b")).splitlines()
    assert lines[0] == r"| method | calibrator | NLL | my\_metric |"
    assert lines[1] == "| --- | --- | ---: | ---: |"
    assert lines[2] == "| a | none | **1.235** [1.200, 1.270] | - |"
    assert lines[3] == r"| b | a\|b | *1.5000* | - |"
    assert lines[-1].endswith("Bold: best. Italic: not significantly worse.")


def test_markdown_takes_neither_cells_nor_tags_from_a_name():
    name = "a|b\n| c | <script>alert(1)</script> [x](y) *z* `q` _u_ \\| &lt; $m$"
    line = as_markdown(table_of(name)).splitlines()[2]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 5
    first = re.split(r"(?<!\\)\|", line)[1]
    assert not re.search(r"(?<!\\)[<>*`_\[\]$&]", first.replace("\\\\", ""))


def test_the_same_table_is_the_same_text():
    for write in (as_csv, as_latex, as_markdown):
        assert write(table_of("a", "b")) == write(table_of("a", "b"))
        assert write(Comparison("method", (), (), ())).endswith("\n")
