"""Studies: each run is trained once, failures are shown, kills change no byte."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_studies import SMALL, contents

from calibrant import data, metrics
from calibrant.cli import main
from calibrant.predictions import Predictions
from calibrant.study import runner
from calibrant.study.folder import read_study, saved_runs
from calibrant.study.rows import read_rows
from calibrant.study.spec import parse
from calibrant.study.worker import run_claimed
from calibrant.training import InterruptedTrainingError
from calibrant.training.folder import PROBED, read_history

PROGRAM = Path(__file__).with_name("dying_study.py")
SMALL = {
    **SMALL,
    "calibrators": ["temperature", "matrix"],
    "metrics": ["accuracy", "nll", "ece"],
    "optimizer": [{"name": "sgd", "lr": 0.05}],
    "method": [{"name": "cross_entropy"}, {"name": "focal", "gamma": 2, "label": "focal 2"}],
}


def attempts(folder: Path) -> list[int]:
    return [len(state.attempts) for state in saved_runs(folder).states()]


@pytest.mark.slow
def test_a_study_trains_what_is_new_and_its_rows_follow_its_settings(alone, tmp_path, monkeypatch):
    rows = runner.run(parse(SMALL), tmp_path)
    # Two methods, two seeds; val and test as they are, test after each of two calibrators.
    assert len(rows) == 2 * 2 * 4 * 3
    assert {row.method for row in rows} == {"cross_entropy", "focal 2"}
    key = ("focal 2", 1, "none", "test", "nll")
    (row,) = [r for r in rows if (r.method, r.seed, r.calibrator, r.split, r.metric) == key]
    (cell,) = [c for c in read_study(tmp_path).cells() if (c.method.label, c.seed) == key[:2]]
    test = Predictions.load(saved_runs(tmp_path).folder_of(cell.id) / "test.npz")
    expected = metrics.interval(metrics.nll, test, resamples=20, seed=0)
    assert (row.value, row.low, row.high) == (expected.value, expected.low, expected.high)
    assert read_rows(tmp_path) == rows
    with open(tmp_path / "rows.csv", newline="") as handle:
        table = list(csv.DictReader(handle))
    assert len(table) == len(rows)
    assert float(table[0]["value"]) == rows[0].value

    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("calibrant.study.worker.run_cell", lambda *_, **__: pytest.fail("trained"))
        # The same again, other calibrators and labels, fewer seeds: nothing is trained.
        runner.run(parse(SMALL), tmp_path)
        assert contents(tmp_path) == before
        labelled = [{"name": "cross_entropy", "label": "plain"}, SMALL["method"][1]]
        rows = runner.run(parse({**SMALL, "calibrators": ["vector"], "method": labelled}), tmp_path)
        assert {row.calibrator for row in rows} == {"none", "vector"}
        assert {row.method for row in rows} == {"plain", "focal 2"}
        assert len(runner.run(parse({**SMALL, "seeds": [0]}), tmp_path)) == 2 * 4 * 3
        runner.run(parse(SMALL), tmp_path)
        assert contents(tmp_path) == before
    rows = runner.run(parse({**SMALL, "seeds": [0, 1, 2]}), tmp_path)
    assert {row.seed for row in rows} == {0, 1, 2}
    assert attempts(tmp_path) == [1] * 6


def test_a_run_that_fails_or_diverges_is_shown_and_the_others_continue(alone, tmp_path):
    wild = {"name": "cross_entropy", "label": "wild", "recipe": {"clip": 0.0, "warmup": 0.0}}
    study = {**SMALL, "seeds": [0], "method": [SMALL["method"][1], wild]}
    study["optimizer"] = [{"name": "sgd", "lr": 1e30}, {"name": "adamw", "lr": 0.01}]
    rows = runner.run(parse(study), tmp_path)
    assert {row.optimizer.split()[0] for row in rows} == {"adamw"}
    ended = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert [each["status"] for each in ended] == ["diverged", "diverged", "done", "done"]
    assert "lower the rate" in ended[0]["reason"]
    assert attempts(tmp_path) == [1, 1, 1, 1]
    runner.run(parse(study), tmp_path, retry=True)
    assert attempts(tmp_path) == [2, 2, 1, 1]


def test_rows_of_a_calibrator_that_cannot_be_fitted_have_no_value(alone, tmp_path):
    few = {**SMALL, "seeds": [0], "dataset": [{"name": "blobs", "limit": 100, "classes": 9}]}
    rows = runner.run(parse(few), tmp_path)
    assert {row.value for row in rows if row.calibrator == "matrix"} == {None}
    assert all(row.value is not None for row in rows if row.calibrator == "temperature")


@pytest.mark.slow
def test_workers_are_processes_of_their_own_and_one_that_dies_is_replaced(tmp_path, monkeypatch):
    study = {**SMALL, "seeds": [0]}
    # Each worker dies at the first checkpoint that it writes: three attempts at each run.
    monkeypatch.setenv("CALIBRANT_FAULT", "checkpoint.before")
    assert runner.run(parse(study), tmp_path, workers=2) == []
    ended = saved_runs(tmp_path).states()
    assert [state.status for state in ended] == ["failed", "failed"]
    assert ended[0].reason == "the worker was killed by SIGKILL, perhaps for lack of memory"
    monkeypatch.delenv("CALIBRANT_FAULT")
    assert len(runner.run(parse(study), tmp_path, workers=2, retry=True)) == 2 * 4 * 3


@pytest.mark.slow
def test_twenty_kills_change_no_byte(tmp_path):
    draw = np.random.default_rng(0)
    plan = [*(float(draw.uniform(0.005, 0.04)) for _ in range(25)), None]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(whole), str(parts), json.dumps(plan)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    first, *kills, last = [end["code"] for end in json.loads(done.stdout.splitlines()[-1])]
    assert kills.count(-signal.SIGKILL) >= 20
    assert (first, last) == (0, 0)
    assert contents(parts) == contents(whole)


def test_finished_runs_whose_files_have_changed_or_gone_are_trained_again(alone, tmp_path):
    runner.run(parse(SMALL), tmp_path)
    before = contents(tmp_path)
    first, second, third, _ = sorted((tmp_path / "cells").iterdir())
    (first / "test.npz").write_bytes(b"no longer predictions")
    (second / "weights.pt").unlink()
    shutil.rmtree(third)
    with pytest.warns(UserWarning, match="files of 2 finished runs have changed or gone"):
        runner.run(parse(SMALL), tmp_path)
    assert contents(tmp_path) == before


def test_a_study_is_not_put_among_other_files(alone, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as thesis\.tex: choose a new"):
        runner.run(parse(SMALL), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_finished_of_a_stopped_study_can_be_reported(tmp_path, monkeypatch):
    study = parse(SMALL)

    class OneRun(runner.LocalExecutor):
        def poll(self) -> bool:
            claim = self.runs.claim("here")
            run_claimed(claim, study.by_id[claim.id], study)
            os.kill(os.getpid(), signal.SIGINT)
            return True

    monkeypatch.setattr(runner, "LocalExecutor", OneRun)
    with pytest.raises(InterruptedTrainingError):
        runner.run(study, tmp_path)
    assert {row.seed for row in read_rows(tmp_path)} == {0}
    # As if the command had been killed: the report puts the rows together.
    (tmp_path / "rows.jsonl").unlink()
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "1 of 4 runs are done." in page
    assert page.count(">pending<") == 3


def test_damaged_rows_are_refused_in_one_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"dataset": 1}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl is damaged"):
        read_rows(tmp_path)


PROBE = {"every": 2, "examples": 50, "measures": ["calibration", "gauss_newton"]}
PROBED_STUDY = {
    **SMALL,
    "seeds": [0],
    "optimizer": [{"name": "sgd", "lr": 0.05, "epochs": 2}, {"name": "gd", "epochs": 3}],
    "recipe": {"batch": 64},
    "method": [{"name": "cross_entropy"}],
}


def test_every_run_holds_the_readings_of_a_probe_and_a_report_can_be_drawn(alone, tmp_path, capsys):
    runner.run(parse({**PROBED_STUDY, "probe": PROBE}), tmp_path)
    study = read_study(tmp_path)
    assert study.probe == PROBE
    for id, cell in study.by_id.items():
        rows = read_history(saved_runs(tmp_path).folder_of(id), name=PROBED)
        # Three steps of full-batch descent; two epochs of three batches.
        train = data.load("blobs", cell.seed, limit=300).train
        last = 3 if cell.optimizer.name == "gd" else 2 * (len(train) // 64)
        assert [row["step"] for row in rows] == sorted({*range(0, last, 2), last})
        assert {"train_ece", "val_ece", "gauss_newton", "edge"} <= rows[0].keys()
        assert "hessian" not in rows[0]
    assert main(["report", str(tmp_path)]) == 0
    capsys.readouterr()


def test_a_study_without_a_probe_has_the_ids_it_always_had():
    plain, probed = parse(PROBED_STUDY), parse({**PROBED_STUDY, "probe": {}})
    assert plain.probe is None
    assert "probe" not in plain.as_dict()
    assert not any("probe" in cell.config() for cell in plain.cells())
    assert not set(plain.by_id) & set(probed.by_id)
    # Defaults that are written out change nothing.
    assert probed.by_id.keys() == parse({**PROBED_STUDY, "probe": {"every": 100}}).by_id.keys()
