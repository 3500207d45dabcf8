"""Many processes on the runs of one study: suspended and killed."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sharing_runs.py")
DONE = {"pending": 0, "running": 0, "diverged": 0, "failed": 0}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="forks and signals of Unix"),
]


def played(scene: str, folder: Path) -> dict:
    command = [sys.executable, str(PROGRAM), scene, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_eight_processes_train_each_of_500_runs_once(tmp_path):
    end = played("crowd", tmp_path)
    assert end["codes"] == [0] * 9
    assert end["counts"] == {**DONE, "done": 500}
    log = Counter((tmp_path / "log").read_text().splitlines())
    assert len(log) == 1000
    assert set(log.values()) == {1}
    # Otherwise one may have done all before the others came.
    assert end["owners"] > 1


def test_a_suspended_worker_keeps_its_run_and_finishes_it(tmp_path):
    end = played("stopped", tmp_path)
    assert end["states"] == ["running", "pending"]
    assert end["other"] == f"{1:016x}"
    assert end["third"]
    assert end["code"] == 0
    assert end["outcomes"] == [["done"], ["done"]]
    assert end["counts"] == {**DONE, "done": 2}


def test_thirty_kills_lose_no_run_and_train_none_twice(tmp_path):
    end = played("killed", tmp_path)
    assert end["codes"] == [-9] * 30 + [0]
    assert end["counts"] == {**DONE, "done": 200}
    done = [line for line in end["log"] if line.startswith("done")]
    # A kill between the record and the log leaves no line, so there may be fewer.
    assert max(Counter(done).values()) == 1
    assert 200 - len(done) <= 30
    assert max(end["tries"]) > 1


def test_a_folder_that_is_not_writable_is_refused_in_one_line_and_can_be_read():
    # Not in tmp_path, whose parents only its user may pass.
    folder = Path(tempfile.mkdtemp())
    try:
        end = played("unwritable", folder)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
    assert "is not writable" in end["said"][0]
    assert "cannot make the folder of the study" in end["said"][1]
    assert all("\n" not in said for said in end["said"])
    assert end["counts"]["pending"] == 1
