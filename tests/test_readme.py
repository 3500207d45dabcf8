"""The examples of the README and of pages of the docs work."""

import re
import shlex
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


BLOCKS = blocks(README)
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
# Commands are in blocks or between backquotes.
SHELL = [text for language, text in BLOCKS if language != "python"]
SHOWN = "\n".join([*SHELL, *re.findall(r"`([^`\n]+)`", README)])


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_python_example_prints_what_its_comments_say(capsys):
    (example,) = EXAMPLES
    exec(example, {})  # noqa: S102, our own README
    number = r"-?\d+\.\d+"
    shown = re.findall(rf"# ({number} \[{number}, {number}\])", example)
    printed = capsys.readouterr().out.splitlines()
    assert len(shown) == len(printed) == 2
    for one, other in zip(shown, printed, strict=True):
        values = ([float(each) for each in re.findall(number, text)] for text in (one, other))
        assert next(values) == pytest.approx(next(values), abs=2e-4)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
@pytest.mark.parametrize(
    "page", ["bias", "calibrators", "conformance", "datasets", "drift", "metrics", "segmentation"]
)
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, text in blocks((ROOT / "docs" / f"{page}.md").read_text()):
        if language == "python":
            exec(text, names)  # noqa: S102, our own docs


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_page_about_hugging_face_works_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, text in blocks((ROOT / "docs" / "transformers.md").read_text()):
        if language == "python":
            exec(text, names)  # noqa: S102, our own docs
    assert names["calibrator"].origin.converged


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_command_of_the_page_about_files_works_on_the_files_it_makes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "files.md").read_text()
    exec(dict(blocks(page))["python"], {})  # noqa: S102, our own docs
    quick = {"audit": ["--no-intervals", "--no-figure", "--no-page"], "compare": ["--resamples=60"]}
    commands = re.findall(r"calibrant ((?:audit|fit|apply|compare) [^`\n]+)", page)
    assert len(commands) == 16
    for command in commands:
        name, *rest = shlex.split(command)
        assert main([name, *rest, *quick.get(name, ())]) == 0, (command, capsys.readouterr().err)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_page_about_several_labels_works_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, commands = {}, []
    for language, text in blocks((ROOT / "docs" / "multi-label.md").read_text()):
        if language == "python":
            exec(text, names)  # noqa: S102, our own docs
        commands += [shlex.split(line)[1:] for line in text.splitlines() if not language]
    assert len(commands) == 4
    for command in commands:
        quick = ["--resamples=20"] if command[0] == "audit" else []
        assert main([*command, *quick]) == 0, (command, capsys.readouterr().err)
    assert "labels are miscalibrated: " in capsys.readouterr().out
    assert {"labels.html", "calibrated.csv"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_page_about_tables_finds_the_fault_that_it_hides(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tables.md").read_text()
    python = [text for language, text in blocks(page) if language == "python"]
    names = {}
    exec(python[0], names)  # noqa: S102, our own docs
    (commands,) = [text.splitlines() for language, text in blocks(page) if not language]
    commands += re.findall(r"`calibrant (audit \'predictions/[^`]+)`", page)
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command.removeprefix("calibrant "))) == 0, command
    said = capsys.readouterr().out
    assert "first region=south, version=2" in said
    assert "miscalibration in time detected in the window 2026-01-" in said
    exec(python[1], names)  # noqa: S102, our own docs
    assert names["found"].slices.slices[0].name == "region=south, version=2"
    assert (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are exactly 0")
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_how_to_guide_works_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, commands = {}, 0
    for language, text in blocks((ROOT / "docs" / "howto.md").read_text()):
        if language == "python":
            exec(text, names)  # noqa: S102, our own docs
            continue
        for line in text.splitlines():
            program, *command = shlex.split(line)
            assert program == "calibrant", line
            quick = ["--resamples=100"] if command[0] in ("audit", "compare") else []
            assert main([*command, *quick]) == 0, (line, capsys.readouterr().err)
            commands += 1
    assert commands >= 10
    assert {"models.html", "models.csv", "spam_after.csv"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_every_make_target_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", SHOWN))
    assert {"quickstart", "test"} <= named
    assert named <= targets


def test_every_command_exists():
    named = set(re.findall(r"\bcalibrant ([a-z]+)", SHOWN))
    assert {"audit", "compare"} <= named
    assert named <= set(COMMANDS)


def test_every_linked_file_exists():
    linked = re.findall(r"\]\(([^)#:]+)\)|src=\"([^\"]+)\"", README)
    assert linked
    for path in map("".join, linked):
        assert (ROOT / path).is_file(), path
