"""The folder of a study: whose code runs, which study it holds, and changes that are seen."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from small_studies import SMALL, command, contents, workers_of

from calibrant.cli import main
from calibrant.study import runner
from calibrant.study.folder import read_study, running, saved_runs, write_study
from calibrant.study.spec import parse
from calibrant.study.worker import work
from calibrant.training.folder import read_json, write_json

SLOWER = {
    **SMALL,
    "seeds": [0, 1, 2],
    "recipe": {"epochs": 40, "batch": 32},
    "dataset": [{"name": "blobs", "limit": 600}],
}
HUB = "torch.hub:load"


def strange(folder: Path) -> Path:
    """A folder from a stranger, whose study allows itself to run the code that lies there."""
    hub = {"name": HUB, "repo_or_dir": str(folder), "model": "net", "source": "local"}
    study = parse({**SMALL, "model": [hub]}, allow_code=[HUB])
    write_study(folder, study)
    held = read_json(folder / "study.json")
    write_json(folder / "study.json", {**held, "allow_code": [HUB]})
    (folder / "hubconf.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\ndef net(): ...\n"
    )
    return folder


def test_the_folder_of_a_stranger_runs_no_code(tmp_path, capsys):
    folder = strange(tmp_path)
    assert main(["worker", str(folder)]) == 2
    assert f"--allow-code {HUB}" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--allow-code"):
        read_study(folder)
    main(["report", str(folder)])
    assert not (folder / "ran").exists()
    # The option of the command line is enough: the code runs, and the run fails without a network.
    assert main(["worker", str(folder), "--allow-code", HUB]) == 1
    assert (folder / "ran").exists()
    # It is not written into the folder, which may go to somebody else.
    write_study(folder, read_study(folder, allow_code=[HUB]))
    assert "allow_code" not in (folder / "study.json").read_text()


@pytest.mark.slow
def test_files_in_the_current_folder_are_not_imported_by_workers(tmp_path):
    for name in ("typer.py", "rich.py", "torch.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')\n")
    python, *args = command(tmp_path / "study", SLOWER)
    done = subprocess.run([python, "-P", *args], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (tmp_path / "study" / "workers.log").read_text()


def test_a_study_of_another_name_is_refused_and_changes_nothing(alone, tmp_path):
    runner.run(parse(SMALL), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds the study 'small', not 'other': choose another"):
        runner.run(parse({**SMALL, "name": "other"}), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_other_settings_are_refused_while_a_study_runs_and_the_same_may_join(alone, tmp_path):
    study, other = parse(SMALL), parse({**SMALL, "seeds": [5]})
    with running(tmp_path, study) as first:
        with pytest.raises(ValueError, match="is running a study with other settings"):
            runner.run(other, tmp_path)
        assert read_study(tmp_path).seeds == (0, 1)
        with running(tmp_path, study) as second:
            assert (first, second) == (True, False)
        # A worker holds the study as well.
        assert work(tmp_path, owner="w") == ["done", "done"]
    assert {row.seed for row in runner.run(other, tmp_path)} == {5}


def test_a_worker_keeps_the_specification_while_it_runs(alone, tmp_path, monkeypatch):
    study = parse({**SMALL, "seeds": [0]})
    write_study(tmp_path, study)

    def meddle(*_, **__) -> None:
        runner.run(parse({**SMALL, "seeds": [1]}), tmp_path)

    monkeypatch.setattr("calibrant.study.worker.run_cell", meddle)
    work(tmp_path, owner="w")
    (state,) = saved_runs(tmp_path).states()
    assert "is running a study with other settings" in state.reason
    assert read_study(tmp_path).seeds == (0,)


def test_rows_that_were_changed_are_refused_by_reports_and_made_again(alone, tmp_path, capsys):
    runner.run(parse(SMALL), tmp_path)
    before = contents(tmp_path)
    for name in ("rows.jsonl", "rows.csv", "measured.json"):
        path = next(tmp_path.glob(f"cells/*/{name}"))
        text = path.read_text()
        place = max(text.rfind(digit) for digit in "123456789")
        path.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
        assert main(["report", str(tmp_path)]) == 2, name
        assert "has changed since it was written" in capsys.readouterr().err
        runner.run(parse(SMALL), tmp_path)
        assert contents(tmp_path) == before, name
    assert [len(state.attempts) for state in saved_runs(tmp_path).states()] == [1, 1]


def test_links_and_pipes_in_a_study_folder_are_refused(tmp_path):
    study, outside = parse({**SMALL, "seeds": [0]}), tmp_path / "outside"
    outside.mkdir()
    (outside / "weights.pt").write_text("mine")
    where = tmp_path / "study"
    where.mkdir()
    write_study(where, study)
    (id,) = study.by_id
    (where / "cells").mkdir()
    (where / "cells" / id).symlink_to(outside)
    with pytest.raises(ValueError, match="is a link; runs are written to real folders"):
        work(where, owner="w")
    assert [path.name for path in outside.iterdir()] == ["weights.pt"]
    (where / "cells" / id).unlink()
    for make in (os.mkfifo, lambda path: path.symlink_to(outside / "log")):
        make(where / "workers.log")
        with pytest.raises(ValueError, match=r"workers\.log must be a regular file"):
            runner.run(study, where)
        (where / "workers.log").unlink()
    assert not (outside / "log").exists()


def test_a_worker_whose_run_fails_exits_with_one(tmp_path, capsys):
    study = parse({**SMALL, "seeds": [0]})
    write_study(tmp_path, study)
    (id,) = study.by_id
    (tmp_path / "cells" / id).mkdir(parents=True)
    write_json(tmp_path / "cells" / id / "config.json", {"threads": -5})
    assert main(["worker", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "1 runs trained, 1 of them failed; no runs left\n"
    (state,) = saved_runs(tmp_path).states()
    assert "threads must be from 1 to 1024" in state.reason


def test_workers_that_die_before_they_take_a_run_end_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(runner, "PAUSE", 0.01)
    with pytest.raises(ChildProcessError, match=r"ended with code 1 before it took a run.*log"):
        runner.run(parse(SMALL), tmp_path)
    assert saved_runs(tmp_path).counts()["pending"] == 2


@pytest.mark.slow
def test_a_suspended_worker_fails_nothing(tmp_path):
    folder = tmp_path / "study"
    args = command(folder, SLOWER, "--workers", "2")
    child = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)

    def until(condition) -> None:
        while not condition():
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)

    until(lambda: list(folder.glob("cells/*/config.json")))
    trained = [s for s in saved_runs(folder).states() if s.status == "running"]
    owner = trained[0].attempts[-1].owner
    (stopped,) = [
        each for each in workers_of(child) if owner in Path(f"/proc/{each}/cmdline").read_text()
    ]
    os.kill(stopped, signal.SIGSTOP)
    # The other worker has done all the rest.
    until(lambda: saved_runs(folder).counts()["done"] == 2)
    assert saved_runs(folder).counts()["running"] == 1
    os.kill(stopped, signal.SIGCONT)
    _, err = child.communicate(timeout=600)
    assert child.returncode == 0, err
    ends = [[each.outcome for each in state.attempts] for state in saved_runs(folder).states()]
    assert ends == [["done"]] * 3


READS = """
import os, sys, threading, urllib.request
from pathlib import Path
from calibrant.cli import main
from calibrant.cli.serving import Server

folder = Path(sys.argv[1])

def look():
    assert main(["report", str(folder), "--text"]) == 0
    with Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in ("", folder.name):
            assert urllib.request.urlopen(server.url + path).status == 200
        server.shutdown()

look()
# What is imported is imported: another user may not read the packages.
if os.geteuid() == 0:
    os.setuid(65534)
try:
    (folder / "new").touch()
except PermissionError:
    look()
    print("read")
"""


@pytest.mark.slow
def test_reports_read_a_folder_that_is_read_only(alone):
    # Not in tmp_path, whose parents only its user may pass.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runner.run(parse({**SMALL, "seeds": [0]}), folder)
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = subprocess.run([sys.executable, "-c", READS, name], capture_output=True, text=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("read\n")
