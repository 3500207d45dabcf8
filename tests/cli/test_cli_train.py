"""`calibrant train`: it trains, resumes, says what happened, and ends with the right code."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibrant import Predictions

QUICK = ("--dataset", "blobs", "--model", "mlp", "--epochs", "2", "--lr", "0.05")
QUICK += ("--data-set", "limit=300")
COMMAND = [sys.executable, "-m", "calibrant.cli", "train"]
TRAINING_PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def files(folder: Path) -> dict[str, bytes]:
    names = ("history.jsonl", "weights.pt", "val.npz", "test.npz", "result.json")
    return {name: (folder / name).read_bytes() for name in names}


def test_it_trains_writes_everything_and_says_what_each_split_did(run, tmp_path):
    code, out, err = run("train", *QUICK, "--method", "focal", "--method-set", "gamma=2", "-o", "r")
    assert code == 0, err
    assert "accuracy" in out
    assert "test: " in out
    assert "nothing is chosen by it" in out
    assert "written: r" in out
    assert len(files(tmp_path / "r")) == 5
    assert Predictions.load(tmp_path / "r" / "test.npz").classes > 1
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["method.gamma"] == 2
    assert config["recipe.lr"] == 0.05
    assert "epoch   1" in err
    code, out, _ = run("audit", "r/test.npz", "--no-intervals")
    assert code == 0


def test_running_the_same_command_again_says_that_it_is_done(run, tmp_path):
    run("train", *QUICK)
    (folder,) = (tmp_path / "runs").iterdir()
    before = files(folder)
    code, out, _ = run("train", *QUICK)
    assert code == 0
    assert out.startswith("this run is finished; nothing was trained")
    assert files(folder) == before
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_metrics_go_to_event_files_too_and_the_folder_stays_the_same(run, tmp_path):
    run("train", *QUICK)
    (before,) = (tmp_path / "runs").iterdir()
    held = files(before)
    before.rename(tmp_path / "before")
    code, _, err = run("train", *QUICK, "--log", "tensorboard:events")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder.name, files(folder)) == (before.name, held)
    (events,) = (tmp_path / "events").iterdir()
    assert events.name.startswith(f"{folder.name}-")
    code, _, err = run("train", *QUICK, "--log", "tensorboard")
    said = "calibrant: a logger is KIND:WHERE, here tensorboard:DIR; got 'tensorboard'\n"
    assert (code, err) == (2, said)


def test_another_setting_goes_to_another_folder(run, tmp_path):
    run("train", *QUICK)
    run("train", *QUICK, "--recipe-set", "momentum=0.5")
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 2
    assert all(re.fullmatch(r"blobs-mlp-cross_entropy-[0-9a-f]{8}", name) for name in names)


def test_json_holds_the_record_and_nothing_else(run):
    code, out, err = run("train", *QUICK, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert set(record["metrics"]) == {"val", "test", "test against its posterior"}
    assert record["examples"]["train"] > record["examples"]["val"] > 0


def test_a_network_of_the_user_is_named_on_the_command_line(run, tmp_path, monkeypatch):
    (tmp_path / "nets_of_a_user.py").write_text(
        "from torch import nn\n"
        "def network(*, classes, shape, width=8):\n"
        "    first = nn.Linear(shape[0], width)\n"
        "    return nn.Sequential(first, nn.Tanh(), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    args = ("--dataset", "blobs", "--epochs", "1", "--model", "nets_of_a_user:network")
    code, out, err = run("train", *args, "--model-set", "width=4")
    assert code == 0, err
    assert "written: runs/blobs-nets_of_a_user_network-cross_entropy-" in out


def test_another_run_in_the_folder_is_refused(run):
    run("train", *QUICK, "-o", "r")
    code, _, err = run("train", *QUICK, "-o", "r", "--seed", "1")
    assert code == 2
    assert "was made with" in err
    assert "--allow-drift" in err


def test_a_loss_that_is_not_finite_has_exit_code_four_also_when_run_again(run, tmp_path):
    args = (*QUICK[:6], "--lr", "1e30", "-o", "r")
    code, _, err = run("train", *args)
    assert code == 4
    assert "calibrant: diverged: loss" in err
    assert "lower the rate" in err
    assert json.loads((tmp_path / "r" / "diverged.json").read_text())["step"] >= 1
    code, _, err = run("train", *args)
    assert code == 4
    assert "it diverged before" in err


@pytest.mark.slow
def test_a_full_disk_has_exit_code_five_and_the_same_command_resumes(tmp_path):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    command = [*COMMAND, *QUICK, "-o", str(tmp_path / "r")]
    full = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
    assert full.returncode == 5, full.stderr
    assert re.search(r"cannot write .*: [\d,]+ bytes needed, [\d,]+ free", full.stderr)
    assert "Traceback" not in full.stderr
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_same_command_ends_with_the_same_bytes(tmp_path, number, code):
    args = ["--dataset", "digits", "--epochs", "12", "--threads", "1", "--model-set", "width=0.5"]
    command = [*COMMAND, *args, "-o", str(tmp_path / "parts")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "parts").glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    sent = time.monotonic()
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert time.monotonic() - sent < 10
    assert "re-run the same command to resume" in err
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run([*command[:-1], str(tmp_path / "whole")], check=True, capture_output=True)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def ran(command: list[str], folder: Path, **extras: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **extras}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_processes_train_through_the_devices_option_and_resume(tmp_path):
    command = [*COMMAND, *QUICK, "--devices", "2", "-o"]
    done = ran([*command, "whole"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("written: whole") == 1
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["processes"] == 2
    # The first process dies with its second checkpoint half written; the other then ends, too.
    killed = ran([*command, "parts"], tmp_path, CALIBRANT_FAULT="weights.inside")
    assert killed.returncode != 0
    again = ran([*command, "parts"], tmp_path)
    assert again.returncode == 0, again.stderr[-3000:]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


@pytest.mark.slow
def test_an_error_of_the_first_process_is_said_once_and_ends_all(tmp_path):
    (tmp_path / "r").write_text("a file")
    done = ran([*COMMAND, *QUICK, "--devices", "2", "-o", "r"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("r is a file: name a folder for the run") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_torchrun_example_of_the_docs_runs(tmp_path):
    (example,) = re.findall(r"^torchrun .*$", TRAINING_PAGE.read_text(), re.MULTILINE)
    words = example.split()
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    done = ran(command, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("written: ") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["processes"] == 2
