"""The example, the commands and the links of the README work."""

import re
from pathlib import Path

import pytest

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
