"""Processes that train together end together, whatever happens to one of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from benchmarks.starved_ranks import measured

from calibrant.training import distributed

COMMAND = [sys.executable, "-m", "calibrant.cli", "train", "--dataset", "blobs", "--model", "mlp"]
COMMAND += ["--data-set", "limit=300", "--lr", "0.05", "--devices", "2", "--epochs", "1000000"]
# Seconds after which something is taken to never happen; all of it takes a few.
NEVER = 120.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def wait_for(event: Callable[[], object]) -> None:
    deadline = time.monotonic() + NEVER
    while not event():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def other_of(first: subprocess.Popen) -> int:
    """The process that the first one starts, as soon as it is there."""
    path = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    wait_for(path.read_text)
    return int(path.read_text().split()[0])


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    # Dead, and not yet asked about by whoever has to.
    return state == "Z"


@pytest.fixture
def training(tmp_path):
    """Two processes that would train for days: the first, and the id of the other."""
    command = [*COMMAND, "--output", str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as first:
        other = other_of(first)
        yield first, other
        for pid in (first.pid, other):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def steps_are_taken(folder: Path) -> Callable[[], object]:
    return lambda: list((folder / "run").glob("checkpoint-*"))


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("when", ["before they meet", "in training"])
class TestAKill:
    @pytest.fixture
    def both(self, training, when, tmp_path):
        if when == "in training":
            wait_for(steps_are_taken(tmp_path))
        return training

    def test_of_the_main_process_ends_the_child(self, both):
        first, other = both
        first.kill()
        wait_for(lambda: gone(other))

    def test_of_a_child_process_ends_the_main_process_with_one_line_of_error(self, both, when):
        first, other = both
        os.kill(other, signal.SIGKILL)
        out, err = first.communicate(timeout=NEVER)
        assert (first.returncode, out) == (2, "")
        lines = [line for line in err.splitlines() if not line.startswith("epoch ")]
        assert lines == [
            "calibrant: process 1 of 2 was killed by SIGKILL; re-run the same command to resume"
        ]


@pytest.mark.slow
def test_the_error_of_a_child_process_is_reported_by_the_main_process(tmp_path):
    code = (
        "import sys\ndef make(**given):\n    print('noise')\n    assert '--rank=1' not in sys.argv"
    )
    code += ", 'only here'\n    return __import__('torch').nn.Linear(2, given['classes'])\n"
    (tmp_path / "failing.py").write_text(code)
    given = ["failing:make" if each == "mlp" else each for each in COMMAND]
    command = [*given, "--output", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=NEVER, env=environment)
    assert ended.returncode == 2
    assert ended.stderr == "calibrant: process 1 of 2 ended with exit code 70: only here\n"


@pytest.mark.slow
@LINUX
def test_two_signals_end_both_processes(training, tmp_path):
    first, other = training
    wait_for(steps_are_taken(tmp_path))
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=NEVER)
    # The second may come after the last step, or be one with the first.
    assert first.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM)
    assert "Traceback" not in err
    wait_for(lambda: gone(other))


@pytest.mark.slow
@LINUX
def test_signals_end_a_process_that_waits_for_a_stopped_one(training, tmp_path):
    first, other = training
    wait_for(steps_are_taken(tmp_path))
    os.kill(other, signal.SIGSTOP)

    def ended_by_signals() -> bool:
        first.send_signal(signal.SIGTERM)
        return first.poll() is not None

    wait_for(ended_by_signals)
    # A third may come when the handlers are gone already; a shell calls both 143.
    assert first.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    wait_for(lambda: gone(other))
    assert "Traceback" not in first.stderr.read()


def test_a_process_that_does_not_arrive_is_not_waited_for_long(monkeypatch):
    assert distributed.LIMIT <= 60
    monkeypatch.setattr(distributed, "LIMIT", 0.05)
    with pytest.raises(TimeoutError, match="1 of 2 processes did not arrive within"):
        distributed._wait_for_all(dist.HashStore(), 0, 2)


@pytest.mark.slow
@LINUX
def test_processes_end_although_gloo_gets_hardly_any_processor_time():
    assert None not in measured(runs=4, limit=300.0)


@pytest.mark.slow
def test_two_processes_resume_with_the_same_bytes(tmp_path):
    """With BatchNorm, whose running statistics this method reads in every step."""
    command = [*COMMAND[:4], "--devices", "2", "--dataset", "digits", "--data-set", "limit=600"]
    command += ["--model", "small_cnn", "--model-set", "width=0.25", "--epochs", "20"]
    command += ["--method", "gamma_net", "--method-set", "every=1"]
    command += ["--recipe-set", "average=0.9", "--output"]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    with subprocess.Popen([*command, str(parts)], stderr=subprocess.DEVNULL) as stopped:
        wait_for(lambda: list(parts.glob("checkpoint-*")) or stopped.poll() is not None)
        stopped.terminate()
    assert stopped.returncode == 128 + signal.SIGTERM
    for folder in (parts, whole):
        subprocess.run([*command, str(folder)], check=True, capture_output=True, timeout=10 * NEVER)
    for name in ("history.jsonl", "weights.pt", "val.npz", "test.npz", "result.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
