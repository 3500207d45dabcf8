"""`calibrant study`, `worker` and `report`: wiring, exit codes, and what is shown."""

import base64
import hashlib
import html
import json
import re
import tomllib
from contextlib import closing
from html.parser import HTMLParser

import pytest
import torch

from calibrant.cli.study_output import View, show_study
from calibrant.study import estimate
from calibrant.study.rows import Row, write_rows
from calibrant.study.runner import Snapshot
from calibrant.study.runs import Attempt, RunState
from calibrant.study.spec import parse, read

STUDY = """
name = "tiny"
about = "<script>alert(1)</script>"
seeds = [0, 1]
calibrators = ["temperature"]
metrics = ["accuracy", "nll"]
resamples = 20
[recipe]
epochs = 2
[[dataset]]
name = "blobs"
limit = 300
[[model]]
name = "mlp"
[[method]]
name = "cross_entropy"
[[method]]
name = "focal"
gamma = 2
label = "<b>focal</b>"
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "tiny.toml").write_text(STUDY)
    return "tiny.toml"


class Tags(HTMLParser):
    """The elements of a page, and what they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.links, self.handlers = [], [], []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.handlers += [key for key, _ in attrs if key.startswith("on")]
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v[:1] != "#"]


@pytest.mark.slow
def test_a_study_runs_shows_a_table_and_writes_an_inert_page(run, spec, tmp_path):
    code, out, err = run("study", spec, "--workers", "2")
    assert code == 0, err
    assert re.search(r"cross_entropy +none +0\.\d{4} \[0\.\d{3}, 0\.\d{3}\]", out)
    assert "95 % interval of a single run over test examples and seeds" in out
    assert re.search(
        r"4 of 4 runs done, 0 running; best so far: .*, nll \d\.\d{4} \(2 seeds\)", err
    )
    assert "report: runs/tiny/report.html" in out
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    # Our own script, which the policy names by its digest, and nothing else.
    assert tags.names.count("script") == 1
    assert not tags.links
    assert not tags.handlers
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert html.unescape(policy).startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy)
    assert "<b>focal" not in page
    assert "<script>alert" not in page
    assert "&lt;b&gt;focal&lt;/b&gt;" in page
    before = {p.name: p.read_bytes() for p in (tmp_path / "runs" / "tiny").glob("r*.*")}
    # Again: nothing to do, and the page drawn again has the same bytes.
    assert run("study", spec)[0] == 0
    assert run("report", "runs/tiny")[0] == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "runs" / "tiny").glob("r*.*")} == before


def test_overrides_and_a_dry_run_that_writes_nothing(run, spec, tmp_path):
    code, out, err = run("study", spec, "--dry-run", "--set", "seeds=[0, 1, 2]")
    assert code == 0, err
    assert "tiny: 6 runs" in out
    assert "of training one run after the other" in out
    assert not (tmp_path / "runs").exists()


def test_times_are_estimated_with_the_threads_of_a_worker(monkeypatch):
    used = []
    monkeypatch.setattr(
        estimate, "_seconds", lambda cell: used.append(torch.get_num_threads()) or 1.0
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        estimate.estimates(parse(tomllib.loads(STUDY)), workers=2)
        assert (set(used), torch.get_num_threads()) == ({2}, 4)
    finally:
        torch.set_num_threads(before)


def test_a_run_that_diverges_is_shown_and_the_code_is_one(run, spec):
    code, out, _ = run("study", spec, "--set", "seeds=[0]", "--set", "recipe.lr=1e30", "-o", "wild")
    assert code == 1
    assert out.count("diverged: 2 runs, the first is blobs") == 1
    assert "lower the rate" in out


def test_json_says_how_the_runs_ended(run, spec):
    code, out, _ = run("study", spec, "--set", "seeds=[0]", "--json")
    assert code == 0
    assert json.loads(out) == {"folder": "runs/tiny", "cells": {"done": 2}, "rows": 12}


@pytest.mark.slow
def test_a_worker_joins_and_finds_nothing_left(run, spec):
    run("study", spec, "--set", "seeds=[0]")
    code, out, _ = run("worker", "runs/tiny")
    assert (code, out) == (0, "0 runs trained, 0 of them failed; no runs left\n")


def states_of(study, *statuses, reason=""):
    ids = [cell.id for cell in study.cells()]
    return tuple(
        RunState(id, status, (Attempt("w", 0.0, 1.0, status, reason, 1.0),))
        for id, status in zip(ids, statuses, strict=True)
    )


def test_a_reason_that_many_cells_share_is_said_once(spec, tmp_path, capsys):
    study = read(tmp_path / spec)
    first, *others = states_of(study, "done", "failed", "failed", "diverged", reason="no data")
    show_study(study, tmp_path, [], [first, *others])
    out = capsys.readouterr().out.splitlines()
    label = study.cells()[1].label
    assert f"failed: 2 runs, the first is {label}: no data" in out
    assert f"diverged: {study.cells()[3].label}: no data" in out
    assert sum("no data" in line for line in out) == 2


def finished(folder, study, place, nll):
    """Write the rows of a cell: NLL with and without a calibrator on test, and on val."""
    cell = study.cells()[place]
    own = folder / "cells" / cell.id
    own.mkdir(parents=True)
    values = {("none", "test"): nll, ("temperature", "test"): nll - 0.1, ("none", "val"): 0.01}
    write_rows(
        own,
        [Row(*cell.labels.values(), cell.seed, *where, "nll", v) for where, v in values.items()],
    )


def test_the_view_names_the_best_by_the_mean_over_its_seeds(spec, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("calibrant.cli.study_output.PATIENCE", -1.0)
    study = read(tmp_path / spec)
    view = View(study, tmp_path, quiet=False)
    view.update(Snapshot(states_of(study, "running", "pending", "pending", "pending"), 1.0))
    assert "best so far" not in capsys.readouterr().err
    finished(tmp_path, study, 0, 0.5)
    view.update(Snapshot(states_of(study, "done", "running", "pending", "pending"), 2.0))
    assert "; best so far: cross_entropy with temperature, nll 0.4000 (1 seed)" in (
        capsys.readouterr().err
    )
    # The second seed is so much worse that focal, with one seed, is better in the mean.
    finished(tmp_path, study, 1, 0.9)
    finished(tmp_path, study, 2, 0.6)
    view.update(Snapshot(states_of(study, "done", "done", "done", "running"), 3.0))
    assert "best so far: <b>focal</b> with temperature, nll 0.5000 (1 seed)" in (
        capsys.readouterr().err
    )
    # Finished cells are read once.
    monkeypatch.setattr("calibrant.study.rows.read_rows", lambda folder: pytest.fail("read again"))
    view.update(Snapshot(states_of(study, "done", "done", "done", "pending"), 4.0))
    assert "best so far" in capsys.readouterr().err


def test_the_best_is_chosen_within_the_first_dataset_and_a_damaged_cell_is_left_out(
    spec, tmp_path, capsys
):
    study = read(tmp_path / spec, overrides=["seeds=[0]"])
    two = {**study.as_dict(), "dataset": [{"name": "blobs"}, {"name": "digits"}]}
    study = parse(two)
    for place, nll in enumerate((0.5, 0.8, 0.1, 0.2)):
        finished(tmp_path, study, place, nll)
    view = View(study, tmp_path, quiet=False)
    view.update(Snapshot(states_of(study, *["done"] * 4), 4.0))
    assert "best so far on blobs, mlp: cross_entropy with temperature, nll 0.4000 (1 seed)" in (
        capsys.readouterr().err
    )
    (tmp_path / "cells" / study.cells()[0].id / "rows.jsonl").write_text("?")
    view = View(study, tmp_path, quiet=False)
    view.update(Snapshot(states_of(study, *["done"] * 4), 4.0))
    assert "best so far on blobs, mlp: <b>focal</b>" in capsys.readouterr().err


def test_a_terminal_shows_the_best_so_far(spec, tmp_path, terminal, monkeypatch):
    study = read(tmp_path / spec)
    finished(tmp_path, study, 0, 0.5)
    monkeypatch.setattr("sys.stderr", terminal)
    with closing(View(study, tmp_path, quiet=False)) as view:
        view.update(Snapshot(states_of(study, "done", "running", "pending", "pending"), 2.0))
        view.live.refresh()
    assert "best so far: cross_entropy with temperature, nll 0.4000 (1 seed)" in terminal.getvalue()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*noload.*")
def test_every_run_of_a_study_is_a_run_of_its_own_in_each_store(run, spec, tmp_path):
    from mlflow import MlflowClient

    code, _, err = run("study", spec, "--log", "tensorbord:x")
    assert (code, err) == (2, "calibrant: no logger 'tensorbord'; did you mean tensorboard?\n")
    uri = f"sqlite:///{tmp_path}/store.db"
    logs = ["--log", "tensorboard:events", "--log", f"mlflow:{uri}"]
    code, _, err = run("study", spec, "--set", "seeds=[0]", "--workers", "2", *logs)
    assert code == 0, err
    folders = sorted(path.name for path in (tmp_path / "events").iterdir())
    assert len(folders) == 2
    name = r"tiny-blobs-limit-300-mlp-sgd-b-focal-b-seed-0-[0-9a-f]{8}"
    assert re.fullmatch(name, folders[0])
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("calibrant").experiment_id
    found = {each.info.run_name: each for each in client.search_runs([experiment])}
    labels = ("<b>focal</b>", "cross_entropy")
    assert sorted(found) == [f"tiny, blobs limit=300, mlp, sgd, {m}, seed 0" for m in labels]
    for each in found.values():
        assert each.info.status == "FINISHED"
        steps = [m.step for m in client.get_metric_history(each.info.run_id, "val_ece")]
        assert steps == [0, 1]
