"""Many processes on one store: stopped, killed, forked, and out of room."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("store_runners.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals of Unix")


def played(scene: str, folder: Path) -> dict:
    command = [sys.executable, str(PROGRAM), scene, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_eight_processes_run_each_of_500_cells_once(tmp_path):
    end = played("crowd", tmp_path)
    assert end["codes"] == [0] * 8
    assert end["counts"] == {"pending": 0, "running": 0, "done": 500, "diverged": 0, "failed": 0}
    log = Counter((tmp_path / "log").read_text().splitlines())
    assert len(log) == 1000
    assert set(log.values()) == {1}
    # Otherwise one may have done all before the others came.
    assert end["owners"] > 1
    assert end["seconds"] < 20


def test_processes_that_make_a_store_at_once_share_it(tmp_path):
    end = played("birth", tmp_path)
    assert end["codes"] == [-9] + [0] * 8
    assert end["seeds"] == list(range(20))


def test_a_runner_that_slept_longer_than_its_lease_changes_nothing(tmp_path):
    end = played("stopped", tmp_path)
    assert end["early"]
    assert end["code"] == 0
    assert end["attempt"] == 2
    assert end["said"] == ["heartbeat False", "finish False", "crash False", "release False"]
    assert end["unchanged"]
    assert end["finished"]
    assert end["outcomes"] == ["lost", "done"]


def test_thirty_kills_lose_no_cell_and_do_none_twice(tmp_path):
    end = played("killed", tmp_path)
    assert end["codes"] == [-9] * 30 + [0]
    assert end["problems"] == []
    assert end["counts"]["done"] == 200
    done = [line for line in end["log"] if line.startswith("done")]
    # A kill between commit and log leaves no line, so there may be fewer.
    assert max(Counter(done).values()) == 1
    assert 200 - len(done) <= 30
    assert max(end["tries"]) > 1


def test_a_child_goes_on_safely_with_the_store_of_its_parent(tmp_path):
    end = played("heirs", tmp_path)
    assert end["log"] == ["inherited 0"]
    assert end["codes"] == [0] * 16
    assert end["problems"] == []
    assert end["counts"] == {"pending": 14, "running": 1, "done": 25, "diverged": 0, "failed": 0}


def test_a_handle_that_came_through_a_hidden_fork_is_refused(tmp_path):
    end = played("hidden", tmp_path)
    (said,) = end["said"]
    assert "before a fork that Python did not see" in said
    assert end["counts"]["pending"] == 1


def test_a_full_disk_is_said_in_one_line_and_nothing_is_half_added(tmp_path):
    end = played("full", tmp_path)
    assert end["kind"] == "DiskFullError"
    assert "\n" not in end["said"]
    assert "store.sqlite" in end["said"]
    assert "make room and run the same command again" in end["said"]
    assert end["before"]["pending"] == 1
    assert end["after"]["pending"] == 10


def test_a_folder_that_is_not_writable_is_refused_in_one_line():
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
