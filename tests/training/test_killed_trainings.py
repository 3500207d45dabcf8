"""Killed at any instant and started again, a training ends with the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.files.faults import STAGES

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("dying.py")
# One without a state of its own, and one whose multipliers move after every epoch.
METHODS = ("cross_entropy", "cals_alm")
# What a run writes, by the first part of the name, and which of its writes dies.
WRITES = {"config": 1, "history": 2, "checkpoint": 3, "weights": 1, "val": 1, "test": 1}
WRITES |= {"result": 1}
RESULTS = ("history.jsonl", "weights.pt", "val.npz", "test.npz", "result.json")


def launched(folder: Path, method: str, plan: list[dict]) -> list[dict]:
    command = [sys.executable, str(PROGRAM), str(folder), method, json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module", params=METHODS)
def undisturbed(request, tmp_path_factory):
    """Method and results of a run to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (end,) = launched(folder, request.param, [{}])
    assert end["ended"] == "exit 0"
    return request.param, contents(folder)


def test_twenty_kills_at_random_instants_change_no_byte(undisturbed, tmp_path):
    method, expected = undisturbed
    draw = np.random.default_rng(0)
    # Short lives, so that twenty of them do not reach the end; checkpoints after many steps.
    plan = [{"kill_after": draw.uniform(0.005, 0.04), "save_every": 0.02} for _ in range(25)]
    ends = launched(tmp_path / "run", method, [*plan, {}])
    assert [end["ended"] for end in ends[:-1]].count("killed") >= 20
    assert ends[-1]["ended"] == "exit 0"
    assert not [end["unreadable"] for end in ends if end["unreadable"]]
    assert contents(tmp_path / "run") == expected
    assert not list((tmp_path / "run").glob(".*.tmp.*"))


@pytest.mark.parametrize("method", ["gamma_net", "calmo"])
def test_kills_of_a_method_that_learns_or_counts_between_steps_change_no_byte(method, tmp_path):
    draw = np.random.default_rng(1)
    plan = [{"kill_after": draw.uniform(0.02, 0.1), "save_every": 0.02} for _ in range(8)]
    ends = launched(tmp_path / "run", method, [*plan, {}])
    assert [end["ended"] for end in ends[:-1]].count("killed") >= 6
    assert ends[-1]["ended"] == "exit 0"
    assert not [end["unreadable"] for end in ends if end["unreadable"]]
    # The run that was timed to plan the kills is one to which nothing happened.
    assert contents(tmp_path / "run") == contents(tmp_path / "run-timed")


def test_a_kill_before_inside_and_after_every_write_changes_no_byte(undisturbed, tmp_path):
    method, expected = undisturbed
    points = [f"{name}.{stage}:{count}" for name, count in WRITES.items() for stage in STAGES]
    # Configuration, history and checkpoint die on the way; the others only near the end, one
    # after another in the order they are written, so each launch goes a little further.
    points.remove("result.after:1")
    ends = launched(tmp_path, method, [*({"fault": point} for point in points), {}])
    assert [end["ended"] for end in ends] == ["killed"] * len(points) + ["exit 0"]
    assert not [end["unreadable"] for end in ends if end["unreadable"]]
    assert contents(tmp_path) == expected
    assert not list(tmp_path.glob(".*.tmp.*"))


def test_a_kill_after_the_last_write_leaves_a_finished_run(undisturbed, tmp_path):
    method, expected = undisturbed
    ends = launched(tmp_path, method, [{"fault": "result.after"}, {}])
    assert [end["ended"] for end in ends] == ["killed", "exit 0"]
    assert contents(tmp_path) == expected
