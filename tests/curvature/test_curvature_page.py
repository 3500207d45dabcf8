"""The Python examples of docs/curvature.md run in their order."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "curvature.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys, as_a_user_runs_it):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in EXAMPLES:
        exec(example, names)  # noqa: S102, our own page
    assert len(EXAMPLES) > 4
    assert names["probe"].records[-1]["step"] == 400
    figures = {"sharpness.png", "margins.png", "scatter.png", "spectrum.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == figures
    assert "FAILS" not in capsys.readouterr().out
