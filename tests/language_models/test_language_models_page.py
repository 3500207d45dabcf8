"""The page about language models works from top to bottom, Python and commands."""

import re
import shlex
from pathlib import Path

import pytest

from calibrant.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "language-models.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.filterwarnings("ignore:.*builtin type .* has no __module__")
def test_the_page_about_language_models_works_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, commands = {}, []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(text, names)  # noqa: S102, our own docs
        for line in text.splitlines() if not language else ():
            program, *command = shlex.split(line)
            assert program == "calibrant", line
            quick = ["--resamples=100"] if command[0] in ("audit", "compare") else []
            assert main([*command, *quick]) == 0, (line, capsys.readouterr().err)
            commands.append(command[0])
    said = capsys.readouterr().out
    assert len(commands) == 10
    assert "first task=law" in said
    assert re.search(r"law +1,500 +(2\.[89]|3\.[01])", said)
    assert '"calibrated_probs": [' in (tmp_path / "calibrated.jsonl").read_text()
    assert re.search(r"Predictions\(4,000 examples, 50 classes\) (1\.9|2\.[01])", said)
