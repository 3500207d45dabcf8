"""Every code block of the documentation does what its page says.

A page is run from top to bottom in one namespace and an empty folder. What is not run says so by
the language of its block; new pages are found by themselves.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant.study import spec

DOCS = Path(__file__).parents[1] / "docs"
# Pages that train, or call a command many times: more than two seconds.
SLOW = {
    "calibrators",
    "curvature",
    "gallery",
    "howto",
    "language-models",
    "lightning",
    "migrating",
    "multi-label",
    "multicalibration",
    "prior-shift",
    "scikit-learn",
    "tour",
    "transformers",
}
# These have tests of their own below, which also run the commands within sentences.
ELSEWHERE = {"files", "tables"}
# Language of a block that is not run, and why.
NOT_RUN = {
    "console": "takes minutes, several machines, or files that only the reader has",
    "text": "is neither code nor a command",
    "diff": "changes the reader's own code",
    'python title="netcal"': "is run by tests/conformance",
    'python title="torchmetrics"': "is run by tests/conformance",
    'python title="scikit-learn"': "is run by tests/conformance",
    'python title="probmetrics"': "is run by tests/conformance",
}
# Files that a page must have written.
LEAVES = {
    "howto": {"models.html", "models.csv", "spam_after.csv"},
    "multi-label": {"labels.html", "calibrated.csv"},
    "tour": {"audit.html", "calibrator.json", "tour.svg", "after.npz"},
}
QUICK = {"audit": ["--resamples=60"], "compare": ["--resamples=60"]}
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*")


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text()


def commands(text: str) -> list[list[str]]:
    """Arguments of every line that calls calibrant."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("calibrant ")]


def assert_same_output(shown: str, printed: str) -> None:
    """Equal words; numbers that may come from another processor."""
    assert NUMBER.sub("0", shown) == NUMBER.sub("0", printed)
    values = (
        [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (shown, printed)
    )
    assert next(values) == pytest.approx(next(values), rel=0.05, abs=0.01)


def run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    printed = ""
    for language, text in BLOCK.findall(page):
        if language in ("python", 'python title="calibrant"'):
            capsys.readouterr()
            exec(text, names)  # noqa: S102, our own docs
            printed = capsys.readouterr().out
        elif language == "output":
            assert_same_output(text, printed)
        elif language == "toml":
            if {"dataset", "model", "method"} <= tomllib.loads(text).keys():
                Path("my.toml").write_text(text)
                assert spec.read("my.toml")
        elif language == "":
            for name, *rest in commands(text):
                code = main([name, *rest, *QUICK.get(name, ())])
                assert code == 0, (name, rest, capsys.readouterr().err)
        else:
            assert language in NOT_RUN, f"neither run nor excluded: ```{language}"


def pages() -> list[object]:
    found = sorted({path.stem for path in DOCS.glob("*.md")} - ELSEWHERE)
    return [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in found]


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.filterwarnings("ignore:.*are exactly 0")
@pytest.mark.filterwarnings("ignore:.*(treespec, LeafSpec|many workers|logging interval)")
@pytest.mark.parametrize("page", pages())
def test_every_block_of_a_page_runs_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(read(page), capsys)
    assert LEAVES.get(page, set()) <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nprint(1.5)\n```\n\n```output\n2.5\n```\n", AssertionError),
        ("```python\nprint('a 1')\n```\n\n```output\nb 1\n```\n", AssertionError),
        ("```\ncalibrant audit absent.npz\n```\n", AssertionError),
        ("```toml\n[[dataset]\n```\n", tomllib.TOMLDecodeError),
        ("```bash\nls\n```\n", AssertionError),
    ],
)
def test_a_broken_block_is_noticed(text, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        run(f"# Page\n\n{text}", capsys)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_command_of_the_page_about_files_works_on_the_files_it_makes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    exec(dict(BLOCK.findall(read("files")))["python"], {})  # noqa: S102, our own docs
    quick = {"audit": ["--no-intervals", "--no-figure", "--no-page"], "compare": ["--resamples=60"]}
    shown = re.findall(r"calibrant ((?:audit|fit|apply|compare) [^`\n]+)", read("files"))
    assert len(shown) >= 16
    for command in shown:
        name, *rest = shlex.split(command)
        assert main([name, *rest, *quick.get(name, ())]) == 0, (command, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_page_about_tables_finds_the_fault_that_it_hides(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = read("tables")
    python = [text for language, text in BLOCK.findall(page) if language == "python"]
    names = {}
    exec(python[0], names)  # noqa: S102, our own docs
    (shown,) = [commands(text) for language, text in BLOCK.findall(page) if not language]
    shown += map(shlex.split, re.findall(r"`calibrant (audit \'predictions/[^`]+)`", page))
    assert len(shown) == 5
    for command in shown:
        assert main(command) == 0, command
    said = capsys.readouterr().out
    assert "first region=south, version=2" in said
    assert "miscalibration in time detected in the window 2026-01-" in said
    exec(python[1], names)  # noqa: S102, our own docs
    assert names["found"].slices.slices[0].name == "region=south, version=2"
    assert (tmp_path / "page.html").exists()
