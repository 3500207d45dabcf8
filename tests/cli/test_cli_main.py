import os
import subprocess
import sys
import warnings

import pytest

from calibrant import __version__
from calibrant.cli import audit, one_line
from calibrant.cli.app import COMMANDS, notes


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from calibrant.cli import main
for command in ([], {[[name] for name in COMMANDS]!r}):
    for args in (command if command else [[]]):
        assert main([*args, "--help"]) == 0
heavy = set(sys.modules) & {{"torch", "numpy", "scipy", "matplotlib", "calibrant.metrics"}}
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_one_help_takes_well_under_a_second():
    code = (
        "import time; from calibrant.cli import main; main(['audit', '--help']);"
        "assert time.process_time() < 0.7, time.process_time()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("module", ["calibrant", "calibrant.cli"])
def test_runs_as_a_module(module):
    command = [sys.executable, "-m", module, "--version"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout == f"calibrant {__version__}\n"


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_extra_of_the_export_is_named(module, run, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = run("audit", "--example")
    assert (code, out) == (2, "")
    assert err == f"calibrant: the command line needs {module}: pip install 'calibrant[cli]'\n"


def test_without_arguments_the_help_is_shown(run):
    code, out, _ = run()
    assert code == 0
    for name in COMMANDS:
        assert name in out


def test_version(run):
    assert run("--version") == (0, f"calibrant {__version__}\n", "")


@pytest.mark.parametrize("error", [KeyError("ours"), RecursionError("ours"), OverflowError("ours")])
def test_an_internal_error_is_one_line_and_has_its_own_exit_code(run, file, monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr(audit, "show", broken)
    command = ("audit", file, "--no-intervals", "--no-figure", "--no-page")
    code, out, err = run(*command)
    assert (code, out) == (70, "")
    assert err.startswith(f"calibrant: internal error: {type(error).__name__}: ")
    assert err.count("\n") == 1
    code, _, err = run(*command, "--debug")
    assert code == 70
    assert "Traceback (most recent call last)" in err


def test_the_help_lists_the_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    for number in (0, 1, 2, 4, 5, 70, 130, 141, 143):
        assert f"{number} " in " ".join(out.partition("Exit codes:")[2].split())


@pytest.mark.parametrize("command", [["list", "shifts"], ["--help"]])
def test_a_closed_pipe_has_another_exit_code_than_an_exceeded_limit(command):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "calibrant", *command]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=300)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_messages_and_notes_are_bounded_and_keep_their_end(run, tmp_path, capsys):
    columns = ",".join(f"column_number_{i}x" for i in range(20_000))
    (tmp_path / "wide.csv").write_text(f"{columns}\n")
    code, _, err = run("audit", "wide.csv")
    assert code == 2
    assert len(err) < 2000
    assert "and 19980 more" in err
    with notes():
        warnings.warn("x" * 10_000 + " do this", stacklevel=1)
    shown = capsys.readouterr().err
    assert len(shown) < 2000
    assert shown.endswith(" do this\n")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "command",
    [
        "audit a.npz",
        "audit a.csv",
        "audit a.parquet",
        "audit a.safetensors",
        "compare a.npz a.npz",
        "fit a.npz -o cal.json",
        "apply a.json a.npz -o b.npz",
        "export a.json -o a.onnx",
        "study a.toml",
        "train --dataset mnist --root .",
        "train --dataset cifar10 --root .",
        "train --dataset ag_news --root .",
        "train --dataset digits -o run",
    ],
)
def test_what_is_no_regular_file_is_refused_and_not_read(run, tmp_path, kind, command):
    names = [f"a.{ending}" for ending in ("npz", "csv", "parquet", "safetensors", "json", "toml")]
    names += ["train-images-idx3-ubyte", "cifar-10-python.tar.gz", "train.csv", "test.csv"]
    (tmp_path / "run").mkdir()
    for name in [*names, "run/result.json", "run/config.json"]:
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to("/dev/zero")
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_a_device_is_not_replaced_by_an_output(run, tmp_path):
    (tmp_path / "out.html").symlink_to("/dev/null")
    code, _, err = run("audit", "--example", "--no-intervals", "--no-figure", "--page", "out.html")
    assert code == 2
    assert err == "calibrant: cannot write out.html: it is not a regular file\n"


@pytest.mark.parametrize("place", ["calibrant.cli.need", "calibrant.cli.audit.output_path"])
def test_ctrl_c_is_quiet_also_while_starting(run, file, monkeypatch, place):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    assert run("audit", file) == (130, "", "")


def test_warnings_become_notes_once_and_on_one_line(capsys):
    with notes():
        for _ in range(2):
            warnings.warn("too few\nexamples", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        warnings.warn("0 * inf", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: too few examples\n"


def test_messages_are_one_printable_line():
    assert one_line(ValueError("a\n  b\x1b[31m")) == "a b [31m"
    assert one_line(FileNotFoundError(2, "No such file", "x.npz")) == "No such file: x.npz"
    assert one_line(MemoryError()) == "MemoryError"
