"""Killed at any instant and started again, `watch` ends with the bytes of an undisturbed run."""

import json
import subprocess
import sys
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pytest
from watched import day, deliver

from calibrant.files.faults import STAGES

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("dying_watch.py")
FILES, SHIFTED = 5, 3
RESULTS = ("state.json", "windows.jsonl", "report.html")


def launched(plan):
    command = [sys.executable, str(PROGRAM), json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def contents(state):
    return {name: (state / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder whose last files are miscalibrated, and one delivered twice."""
    folder = tmp_path_factory.mktemp("source") / "in"
    for number in range(FILES):
        deliver(folder, number, shift=0.0 if number < SHIFTED else -2.0)
    (folder / "again.parquet").write_bytes((folder / "day-00.parquet").read_bytes())
    return folder


def arguments(source, state, *more):
    return ["watch", str(source), "--state", str(state), "--time", "ts", "--once", *more]


def alarmed(state):
    """Options of a command that writes a line for each time it runs, and its file."""
    log = state.parent / f"{state.name}.log"
    command = f"{sys.executable} -c \"open('{log}', 'a').write('x')\""
    return ["--on-alarm", command], log


def test_a_kill_at_every_point_of_every_write_changes_no_byte(source, tmp_path):
    # One write of the state for each file, those of the copy and of an alarm among them, and the
    # last after the command.
    last = FILES + 2
    points = [f"state.{stage}:{at}" for at in (1, 2, 5, last) for stage in STAGES]
    points += [f"{name}.{stage}" for name in ("windows", "report") for stage in STAGES]
    expected = tmp_path / "undisturbed"
    command, log = alarmed(expected)
    plan = [{"args": arguments(source, expected, *command)}]
    states = {point: tmp_path / point.replace(":", "-") for point in points}
    for point, state in states.items():
        run = arguments(source, state, *alarmed(state)[0])
        plan += [{"args": run, "fault": point}, {"args": run}]
    assert launched(plan) == [1, *["killed", 1] * len(points)]
    assert log.read_text() == "x"
    for point, state in states.items():
        assert contents(state) == contents(expected), point
        assert not list(state.glob(".*.tmp.*")), point
        # The command runs again only if the process died before it was saved that it had run.
        unsaved = [f"state.{stage}:{last}" for stage in STAGES if stage != "after"]
        assert alarmed(state)[1].read_text() == ("xx" if point in unsaved else "x"), point


def test_kills_at_random_instants_change_no_byte(source, tmp_path):
    draw = np.random.default_rng(0)
    run = arguments(source, tmp_path / "state")
    plan = [{"args": run, "kill_after": draw.uniform(0.02, 0.6)} for _ in range(15)]
    undisturbed = arguments(source, tmp_path / "undisturbed")
    ends = launched([*plan, {"args": run}, {"args": undisturbed}])
    assert ends[-2:] == [1, 1]
    assert ends.count("killed") >= 3
    assert contents(tmp_path / "state") == contents(tmp_path / "undisturbed")


def test_a_kill_while_a_table_is_counted_changes_no_byte(tmp_path):
    rows = pa.concat_tables([day(number) for number in range(4)])
    connection = ibis.duckdb.connect(tmp_path / "db.ddb")
    connection.create_table("predictions", rows)
    connection.disconnect()
    address = f"duckdb://{tmp_path / 'db.ddb'}#predictions"
    undisturbed = tmp_path / "undisturbed"
    plan = [{"args": arguments(address, undisturbed)}]
    points = [f"{name}.{stage}" for name in ("state", "windows", "report") for stage in STAGES]
    for point in points:
        run = arguments(address, tmp_path / point)
        plan += [{"args": run, "fault": point}, {"args": run}]
    assert launched(plan) == [0, *["killed", 0] * len(points)]
    for point in points:
        assert contents(tmp_path / point) == contents(undisturbed), point
