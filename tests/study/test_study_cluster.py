"""Studies on a Dask cluster: the same bytes, whoever is killed, and one process holds the store."""

import logging
import os
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_studies import SMALL, command, contents

from calibrant.study import cluster, cluster_task, runner
from calibrant.study.cluster import run_on_cluster
from calibrant.study.folder import saved_runs
from calibrant.study.spec import parse

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

# Ten times the ten seconds that are promised: a machine may have other work.
SOON = 100
# Long enough for a checkpoint in the middle.
LONG = {"name": "cross_entropy", "recipe": {"epochs": 80}}
STUDY = {
    **SMALL,
    "recipe": {"epochs": 30, "batch": 32},
    "dataset": [{"name": "blobs", "limit": 600}],
    "method": [LONG, {"name": "focal"}],
}


@pytest.fixture(scope="module")
def address():
    """The scheduler of two worker processes, which are started anew when they die."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=2, processes=True, **options) as started:
        yield started.scheduler_address


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same study without a cluster."""
    folder = tmp_path_factory.mktemp("whole")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = runner.run(parse(STUDY), folder)
    torch.set_num_threads(before)
    assert len(rows) == 4 * 3 * 2
    return contents(folder)


def outcomes(folder: Path) -> list[list[str]]:
    """How the attempts at each run ended; also sees that none began before the last had ended."""
    found = [state.attempts for state in saved_runs(folder).states()]
    for attempts in found:
        for first, second in pairwise(attempts):
            assert first.ended <= second.started
    return [[each.outcome for each in attempts] for attempts in found]


def test_a_worker_that_is_killed_costs_its_attempt_and_no_byte(address, whole, tmp_path):
    killed = []
    with distributed.Client(address, set_as_default=False) as client:
        processes = client.run(os.getpid)

        def kill_one(snapshot) -> None:
            for place, state in enumerate(snapshot.cells):
                trained = list((tmp_path / "cells" / state.id).glob("checkpoint-*"))
                if killed or state.status != "running" or not trained:
                    continue
                for at, keys in client.processing().items():
                    if any(state.id in key for key in keys):
                        os.kill(processes[at], signal.SIGKILL)
                        killed.append((at, place))

        run_on_cluster(parse(STUDY), tmp_path, address=address, watch=kill_one)
    ((at, place),) = killed
    assert contents(tmp_path) == whole
    ends = outcomes(tmp_path)
    assert ends.pop(place) == ["crashed", "done"]
    assert ends == [["done"]] * 3
    (first, _) = saved_runs(tmp_path).states()[place].attempts
    assert first.reason == f"the worker {at} was killed or cut off"
    assert not (tmp_path / cluster.TOKEN).exists()


class Apart(cluster.Cluster):
    """Of workers that do not see the folder."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.token.write_text("of another folder with the same path")


def test_files_come_back_from_workers_that_do_not_see_the_folder(
    address, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "Cluster", Apart)
    study = {**STUDY, "seeds": [0]}
    study["optimizer"] = [{"name": "sgd"}, {"name": "sgd", "lr": 1e30, "label": "wild"}]
    rows = run_on_cluster(parse(study), tmp_path, address=address)
    assert {row.optimizer for row in rows} == {"sgd"}
    runs = saved_runs(tmp_path)
    cells = runs.states()
    folders = [runs.folder_of(state.id) for state in cells]
    assert [state.status for state in cells] == ["done", "done", "diverged", "diverged"]
    assert "lower the rate" in cells[2].reason
    assert (folders[2] / "diverged.json").exists()
    for folder in folders:
        assert not list(folder.glob("checkpoint-*"))
    same = {name: data for name, data in contents(tmp_path).items() if name in whole}
    assert sum("weights.pt" in name for name in same) == 2
    del same["rows.jsonl"], same["rows.csv"]
    assert same == {name: whole[name] for name in same}


def started(folder: Path, address: str) -> subprocess.Popen:
    """The command, once runs are trained and there is a checkpoint."""
    args, pipe = command(folder, STUDY, "--dask", address), subprocess.PIPE
    child = subprocess.Popen(args, stdout=pipe, stderr=pipe, text=True)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert child.poll() is None, child.communicate()
        if list(folder.glob("cells/*/checkpoint-*")) and saved_runs(folder).counts()["running"]:
            break
        time.sleep(0.02)
    return child


def test_the_command_that_is_ended_is_resumed_to_the_same_bytes(address, whole, tmp_path):
    folder = tmp_path / "study"
    child = started(folder, address)
    sent = time.monotonic()
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=600)
    assert child.returncode == 143
    assert time.monotonic() - sent < SOON
    assert (out, err) == ("", f"{err.splitlines()[0]}\n")
    assert err.startswith("calibrant: stopped by SIGTERM; finished steps are saved in")
    child = started(folder, address)
    child.kill()
    child.communicate()
    # At once: tasks of the second command may still be training.
    run_on_cluster(parse(STUDY), folder, address=address)
    assert contents(folder) == whole
    ends = outcomes(folder)
    assert {each for attempts in ends for each in attempts[:-1]} == {"released"}
    assert [attempts[-1] for attempts in ends] == ["done"] * 4
    assert max(map(len, ends)) >= 2


def test_a_worker_that_was_restarted_under_its_address_does_not_run_a_task_again():
    record = cluster_task.train_cell({"incarnation": "before"})
    assert record == {"status": "lost", "reason": "its process was killed and restarted"}


def test_versions_that_differ_and_workers_without_calibrant_are_refused(
    address, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "versions", lambda: {"calibrant": "9.9+abc", "Python": "3.11"})
        with pytest.raises(ValueError, match=r"worker tcp.* has calibrant .*, but this .* 9\.9"):
            run_on_cluster(parse(STUDY), tmp_path, address=address)

    # Stands for a worker without calibrant; it must survive that.
    monkeypatch.setattr(cluster, "ENTRY", "nobody_has_this:INCARNATION")
    with pytest.raises(ValueError, match=r"cannot take part .*No module named 'nobody_has_this'"):
        run_on_cluster(parse(STUDY), tmp_path, address=address)
    assert outcomes(tmp_path) == [[]] * 4
    with distributed.Client(address, set_as_default=False) as client:
        assert len(client.nthreads()) == 2


def test_no_scheduler_and_no_workers_are_said_in_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "ANSWER", 0.3)
    for wrong in ("tcp://127.0.0.1:9", "nonsense"):
        with pytest.raises(ConnectionError, match=f"no Dask scheduler answers at {wrong}"):
            run_on_cluster(parse(STUDY), tmp_path, address=wrong)
    monkeypatch.setattr(cluster, "ANSWER", 10.0)
    monkeypatch.setattr(cluster, "NO_WORKERS", 0.3)
    options = {"n_workers": 0, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with (
        distributed.LocalCluster(**options) as empty,
        pytest.raises(ConnectionError, match="has had no workers for 0 s: start some with"),
    ):
        run_on_cluster(parse(STUDY), tmp_path, address=empty.scheduler_address)
    assert capfd.readouterr() == ("", "")
