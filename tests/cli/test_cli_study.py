"""`calibrant study`, `worker` and `report`: wiring, exit codes, and what is shown."""

import json
import re
from html.parser import HTMLParser

import pytest

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
        self.names, self.links = set(), []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v[:1] != "#"]


def test_a_study_runs_shows_a_table_and_writes_an_inert_page(run, spec, tmp_path):
    code, out, err = run("study", spec, "--workers", "2")
    assert code == 0, err
    assert "4 of 4 cells" in err
    assert re.search(r"cross_entropy +none +0\.\d{4} ± 0\.\d{4}", out)
    assert "plus or minus the standard deviation over seeds" in out
    assert "report: runs/tiny/report.html" in out
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.names
    assert "b" not in tags.names
    assert not tags.links
    assert "default-src 'none'" in page
    assert "&lt;b&gt;focal&lt;/b&gt;" in page
    before = {p.name: p.read_bytes() for p in (tmp_path / "runs" / "tiny").glob("r*.*")}
    # Again: nothing to do, and the page drawn again has the same bytes.
    assert run("study", spec)[0] == 0
    assert run("report", "runs/tiny")[0] == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "runs" / "tiny").glob("r*.*")} == before


def test_overrides_and_a_dry_run_that_writes_nothing(run, spec, tmp_path):
    code, out, err = run("study", spec, "--dry-run", "--set", "seeds=[0, 1, 2]")
    assert code == 0, err
    assert "tiny: 6 cells" in out
    assert "of training with one worker" in out
    assert not (tmp_path / "runs").exists()


def test_a_cell_that_diverges_is_shown_and_the_code_is_one(run, spec):
    code, out, _ = run("study", spec, "--set", "seeds=[0]", "--set", "recipe.lr=1e30", "-o", "wild")
    assert code == 1
    assert out.count("diverged: blobs") == 2
    assert "lower the rate" in out


def test_json_says_how_the_cells_ended(run, spec):
    code, out, _ = run("study", spec, "--set", "seeds=[0]", "--json")
    assert code == 0
    assert json.loads(out) == {"folder": "runs/tiny", "cells": {"done": 2}, "rows": 12}


def test_a_worker_joins_and_finds_nothing_left(run, spec):
    run("study", spec, "--set", "seeds=[0]")
    code, out, _ = run("worker", "runs/tiny")
    assert (code, out) == (0, "0 cells run; none is left to take\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("study", "no.toml"), "no file no.toml; ours are called quickstart"),
        (("study", "tiny.toml", "--set", "recipe.epoch=3"), "recipe.epoch"),
        (("worker", "nowhere"), "nowhere"),
        (("report", "nowhere"), "no rows in nowhere: run the study first"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, spec, args, message):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
