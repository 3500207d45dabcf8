"""docs/migrating.md: the same task in other libraries, with the same result."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("netcal")
pytest.importorskip("probmetrics.calibrators")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
SETUP, *SECTIONS = PAGE.split("\n## ")
PYTHON = re.compile(r'^```python(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
TASKS = {section.partition("\n")[0]: dict(PYTHON.findall(section)) for section in SECTIONS}
# The page says why: float32 sums of torchmetrics, searches that stop early, a pseudo-example.
TOLERANCE = {"5": 1e-5, "6": 1 / 2000, "7": 2e-3, "8": 1e-6}
# What the others are known for: if one learns a new task, the page should say so.
OTHERS = {
    "1": {"netcal", "torchmetrics", "probmetrics"},
    "2": {"netcal"},
    "3": {"scikit-learn", "probmetrics"},
    "4": {"netcal", "scikit-learn"},
    "5": {"netcal", "scikit-learn", "probmetrics"},
    "6": {"netcal", "scikit-learn", "probmetrics"},
    "7": {"probmetrics"},
    "8": {"scikit-learn"},
    "9": {"torchmetrics"},
    "10": set(),
}


def result_of(code: str) -> object:
    """Run the arrays of the page, then one block; return its `result`."""
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that the others use
        exec(PYTHON.findall(SETUP)[0][1], names)  # noqa: S102, our own docs
        exec(code, names)  # noqa: S102, our own docs
    return names["result"]


def test_ten_tasks_are_shown_here_and_where_the_others_have_them():
    found = {title.partition(".")[0]: set(blocks) for title, blocks in TASKS.items()}
    assert found == {task: {*others, "calibrant"} for task, others in OTHERS.items()}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("task", TASKS)
def test_every_library_gives_the_result_of_the_page(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {library: result_of(code) for library, code in TASKS[task].items()}
    ours = results.pop("calibrant")
    for library, theirs in results.items():
        if isinstance(ours, Figure):
            assert isinstance(theirs, Figure), library
            assert theirs.axes, library
        else:
            close = TOLERANCE.get(task.partition(".")[0], 1e-6)
            assert np.asarray(theirs) == pytest.approx(np.asarray(ours), abs=close), library
