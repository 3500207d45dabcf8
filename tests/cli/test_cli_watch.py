"""`calibrant watch`: lines, exit codes, the command for alarms, and errors of one line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.child_processes import command, environment


def deliver(folder, number, *, shift=0.0, rows=300):
    """Write a day of predictions whose true logits are shifted."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(number)
    confidence = rng.beta(8, 1, rows)
    truth = 1 / (1 + np.exp(-shift) * (1 - confidence) / confidence)
    correct = (rng.random(rows) < truth).astype(int)
    path = folder / f".{number:02}.parquet"
    pq.write_table(pa.table({"confidence": confidence, "correct": correct}), path)
    path.rename(folder / f"day-{number:02}.parquet")


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        deliver(tmp_path / "in", number)
    return tmp_path / "in"


def test_a_calibrated_folder_exits_with_0_and_says_what_is_new(run, folder, tmp_path):
    code, out, err = run("watch", "in", "--state", "st", "--once")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [f"day-0{n}.parquet" for n in range(3)]
    assert lines[3].startswith("3 windows, 900 labelled rows, e-value 0.")
    assert lines[4] == "page: st/report.html"
    assert {each.name for each in (tmp_path / "st").iterdir()} == {
        "lock", "report.html", "state.json", "windows.jsonl",
    }  # fmt: skip
    code, out, _ = run("watch", "in", "--state", "st", "--once")
    assert code == 0
    assert out.splitlines()[0].startswith("nothing new; 3 windows")


def test_an_alarm_exits_with_1_until_it_is_reset_and_runs_the_command_once(run, folder, tmp_path):
    for number in range(3, 6):
        deliver(folder, number, shift=-2.0)
    # Quotes are read as a shell reads them, and no shell runs.
    program = (
        "import os; names = ('WINDOW', 'E_VALUE', 'PAGE'); "
        "print(*(os.environ['CALIBRANT_' + each] for each in names), file=open('log', 'a'))"
    )
    args = (
        "watch",
        "in",
        "--state",
        "st",
        "--once",
        "--on-alarm",
        f'{sys.executable} -c "{program}"',
    )
    code, out, _ = run(*args)
    assert code == 1
    said = [line for line in out.splitlines() if line.startswith("calibration broke: e-value ")]
    assert len(said) == 1
    assert "in window day-03.parquet, alarm at 20; leading bet: logits of " in said[0]
    assert run(*args)[0] == 1, "the alarm is still on"
    window, e_value, page = (tmp_path / "log").read_text().split()
    assert (window, page) == ("day-03.parquet", str(tmp_path / "st" / "report.html"))
    assert float(e_value) >= 20
    assert "Calibration broke" in (tmp_path / "st" / "report.html").read_text()
    code, out, _ = run(*args, "--reset")
    assert (code, out.splitlines()[0]) == (
        0,
        "new e-process: the alarm is off, the level holds anew",
    )
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_command_that_fails_is_run_again(run, folder):
    deliver(folder, 3, shift=-3.0)
    args = ("watch", "in", "--state", "st", "--once", "--on-alarm", f"{sys.executable} -c 1/0")
    for _ in range(2):
        code, _, err = run(*args)
        assert code == 1
        assert "--on-alarm: the command failed with code 1; it is run again next time" in err


def test_json_lines_hold_events_and_windows(run, folder):
    code, out, err = run("watch", "in", "--state", "st", "--once", "--json")
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [each["event"] for each in events] == ["counted"] * 3 + ["window"] * 3
    assert events[0]["file"] == "day-00.parquet"
    assert events[-1]["rows"] == 300
    assert events[-1]["metrics"]["ece"]["value"] < 0.1


def test_a_damaged_file_exits_with_2_after_what_came_before_was_written(run, folder, tmp_path):
    (folder / "day-01.parquet").write_bytes(b"PAR1 but no parquet file PAR1")
    code, out, err = run("watch", "in", "--state", "st", "--once")
    assert code == 2
    assert err.count("\n") == 1
    assert "in/day-01.parquet: is damaged or no parquet file" in err
    assert err.endswith("; --keep-going leaves such files out\n")
    assert len((tmp_path / "st" / "windows.jsonl").read_text().splitlines()) == 1
    code, out, err = run("watch", "in", "--state", "st", "--once", "--keep-going")
    assert (code, err) == (0, "")
    assert "day-01.parquet: left out: is damaged or no parquet file" in out
    page = (tmp_path / "st" / "report.html").read_text()
    assert "files: 2 counted, 1 left out" in page


def test_the_example_of_the_documentation_breaks_on_day_8(run, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "watch.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], {})  # noqa: S102
    code, out, _ = run("watch", "predictions/", "--state", "watch/", "--time", "ts", "--once")
    assert code == 1
    assert "in window 2026-01-08, alarm at 20" in out


ERRORS = {
    "watch": "Missing argument",
    "watch in": "Missing option '--state'",
    "watch nowhere --state st": ": no such file or folder: nowhere\n",
    "watch in --state st --every 1y": ": windows must be written as 15m, 1h, 1d or 1w, got '1y'\n",
    "watch in --state st --interval 5": ": --interval must be written as 30s, 10m, 1h or 1d, got ",
    "watch in --state st --level 2": ": level must lie between 0 and 1, got 2.0\n",
    "watch in --state st --on-alarm=": ": --on-alarm must name a program, got ''\n",
    "watch in --state st --on-alarm nonsense-x": ": --on-alarm must name a program, got 'nonsense",
    "watch in/day-00.parquet --state st": ": in/day-00.parquet is a table without a column of t",
    "watch in --state in/day-00.parquet": " is a file: name a folder for the state\n",
    "watch in --state st --time when --once": "in/day-00.parquet: no column 'when' in the table",
    "watch in --state st --page no/x.html": ": cannot write no/x.html: no folder no",
}


@pytest.mark.parametrize("args", ERRORS)
def test_errors_are_one_line(run, folder, args):
    code, out, err = run(*args.split(" "))
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: ")
    assert err.count("\n") == 1
    assert ERRORS[args] in err


def test_a_folder_without_files_is_waited_for(run, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "empty.csv").write_text("confidence,correct\n")
    code, out, err = run("watch", "in", "--state", "st", "--once")
    assert (code, err) == (0, "")
    assert out.splitlines()[-2].startswith("0 windows, 0 labelled rows, e-value 1")


@pytest.mark.slow
def test_it_goes_on_watching_until_calibration_breaks(folder, tmp_path):
    args = ["watch", str(folder), "--state", str(tmp_path / "st"), "--interval", "1s", "--json"]
    started = command("calibrant.cli", args)
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        files = (json.loads(line).get("file") for line in process.stdout)
        assert "day-02.parquet" in files
        deliver(folder, 3)
        assert "day-03.parquet" in files
        second = subprocess.run(
            [*started, "--once"], capture_output=True, text=True, env=environment(), check=False
        )
        assert second.returncode == 2
        assert "another process watches with the state" in second.stderr
        for number in (4, 5):
            deliver(folder, number, shift=-3.0)
        assert [json.loads(line)["event"] for line in process.stdout][-1] == "alarm"
        assert process.wait(60) == 1


@pytest.mark.slow
def test_a_signal_ends_it_and_the_next_start_resumes(folder, tmp_path):
    args = ["watch", str(folder), "--state", str(tmp_path / "st"), "--json"]
    started = command("calibrant.cli", args)
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    done = subprocess.run(
        [*started, "--once"], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len((tmp_path / "st" / "windows.jsonl").read_text().splitlines()) == 3
