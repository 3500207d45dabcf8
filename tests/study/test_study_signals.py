"""`calibrant study` keeps its promises: signals, kills, a full disk, folders of other runs."""

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from small_studies import SMALL, command, contents, workers_of

from calibrant.cli import main
from calibrant.study import runner
from calibrant.study.cell import run_cell
from calibrant.study.folder import saved_runs
from calibrant.study.spec import parse

# Ten times the ten seconds that are promised: a machine may have other work.
SOON = 100


STUDY = {
    **SMALL,
    "recipe": {"epochs": 300, "batch": 32},
    "dataset": [{"name": "blobs", "limit": 600}],
}


def started(folder: Path) -> subprocess.Popen:
    """The command, at the moment at which both its workers have begun to train."""
    begun = time.time_ns()
    child = subprocess.Popen(
        command(folder, STUDY, "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert child.poll() is None, child.communicate()
        files = list(folder.glob("cells/*/config.json"))
        if sum(path.stat().st_mtime_ns > begun for path in files) == 2:
            return child
        time.sleep(0.01)
    raise AssertionError("no run was begun")


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # Ended, and nobody has asked how.
    return " Z " not in Path(f"/proc/{process}/stat").read_text()


@pytest.mark.slow
def test_signals_save_and_kills_lose_nothing_and_the_same_command_resumes(
    alone, as_a_user_runs_it, tmp_path
):
    folder = tmp_path / "parts"
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        child = started(folder)
        workers, sent = workers_of(child), time.monotonic()
        child.send_signal(number)
        _, err = child.communicate(timeout=600)
        assert child.returncode == code, err
        assert time.monotonic() - sent < SOON
        assert err.splitlines()[-1] == (
            f"calibrant: stopped by {number.name}; finished steps are saved in {folder}; re-run "
            "the same command to resume"
        )
        assert "Traceback" not in err
        assert not any(map(lives, workers))
        assert saved_runs(folder).counts()["pending"] == 2
        # Of the step at which they were, long before one was due.
        assert all(list(cell.glob("checkpoint-*")) for cell in (folder / "cells").iterdir())
    child = started(folder)
    workers, killed = workers_of(child), time.monotonic()
    child.kill()
    child.communicate()
    assert len(workers) == 2
    while any(map(lives, workers)):
        assert time.monotonic() - killed < SOON, "workers live on without their parent"
        time.sleep(0.05)
    # One may have come to its end before it saw that it was alone.
    assert saved_runs(folder).counts()["running"] == 0
    assert main(command(folder, STUDY)[3:]) == 0
    for state in saved_runs(folder).states():
        *before, last = [each.outcome for each in state.attempts]
        assert (set(before), last) == ({"released"}, "done")
        assert len(before) in (2, 3)
    assert main(command(tmp_path / "whole", STUDY)[3:]) == 0
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_ends_with_five_and_the_same_command_resumes(alone, tmp_path):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    sets = ("model=[{name='mlp', hidden=[512, 512]}]", "recipe.epochs=1", "seeds=[0]")
    args = command(tmp_path / "r", STUDY, *[each for text in sets for each in ("--set", text)])
    full = subprocess.run(args, capture_output=True, text=True, preexec_fn=small_files)
    assert full.returncode == 5, full.stderr
    last = full.stderr.splitlines()[-1]
    path = rf"{tmp_path}/r/cells/[0-9a-f]+/checkpoint-\d+\.pt"
    assert re.match(rf"calibrant: cannot write {path}: [\d,]+ bytes needed, [\d,]+ free ", last)
    assert last.endswith("make room and re-run the same command to resume")
    assert "Traceback" not in full.stderr
    assert saved_runs(tmp_path / "r").counts()["pending"] == 1
    assert main(args[3:]) == 0
    (state,) = saved_runs(tmp_path / "r").states()
    assert [each.outcome for each in state.attempts] == ["released", "done"]


class StopError(Exception):
    """Leaves a training with a checkpoint."""


def begun(study, place: int, folder: Path) -> Path:
    """The folder of a run that was interrupted in its second epoch."""
    cell = study.cells()[place]
    own = folder / "cells" / cell.id
    own.mkdir(parents=True)

    def stop(loop) -> None:
        if loop.progress.epoch == 1:
            raise StopError

    with pytest.raises(StopError):
        run_cell(cell, study, own, on_step=stop)
    assert list(own.glob("checkpoint-*"))
    return own


@pytest.fixture
def saving(monkeypatch):
    monkeypatch.setattr("calibrant.training.run.SAVE_LEAST", 0.0)


def reasons(study, folder: Path, **options) -> list[str]:
    runner.run(study, folder, **options)
    return [state.reason for state in saved_runs(folder).states()]


def test_a_run_begun_with_other_code_is_refused_by_name(alone, saving, tmp_path, monkeypatch):
    study = parse(SMALL)
    own = begun(study, 0, tmp_path)
    monkeypatch.setattr("calibrant.training.folder.code_digest", lambda names: "0123456789ab")
    refused, other = reasons(study, tmp_path)
    assert refused.startswith(f"ValueError: {own} was made with calibrant = ")
    assert refused.endswith("+0123456789ab: remove that folder and give --retry")
    assert other == ""
    shutil.rmtree(own)
    assert reasons(study, tmp_path, retry=True) == ["", ""]


def test_a_folder_of_another_run_is_refused_by_the_setting(alone, saving, tmp_path):
    study = parse(SMALL)
    own = begun(study, 0, tmp_path)
    own.rename(own.with_name(study.cells()[1].id))
    first, refused = reasons(study, tmp_path)
    assert first == ""
    assert "was made with seed = 0, now 1; " in refused


def test_a_run_keeps_the_threads_it_was_begun_with(alone, saving, tmp_path):
    study = parse({**SMALL, "seeds": [0]})
    own = begun(study, 0, tmp_path)
    torch.set_num_threads(2)
    assert reasons(study, tmp_path) == [""]
    assert torch.get_num_threads() == 2
    assert '"threads": 1' in (own / "result.json").read_text()
