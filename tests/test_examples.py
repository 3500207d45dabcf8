"""The examples run as they stand, and show what they are for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_its_method_lowers_the_error(path, tmp_path):
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    plain, *methods = (float(each) for each in re.findall(r"ECE (\d\.\d+)", done.stdout))
    assert methods
    assert max(methods) < 0.5 * plain
