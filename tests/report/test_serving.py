"""Studies on a page of this machine: read only, for this machine only, and growing."""

import http.client
import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrant.cli import main, serving
from calibrant.cli.serving import Server
from calibrant.study.folder import saved_runs, write_study
from calibrant.study.spec import parse
from calibrant.study.worker import work

STUDY = {
    "name": "tiny",
    "calibrators": ["temperature"],
    "metrics": ["accuracy", "nll", "ece"],
    "resamples": 5,
    "recipe": {"epochs": 1},
    "dataset": [{"name": "blobs", "limit": 300}],
    "model": [{"name": "mlp", "hidden": [8]}],
    "method": [{"name": "cross_entropy"}, {"name": "focal", "gamma": 2, "label": "<b>focal</b>"}],
}


def begun(folder, **changes):
    """A study whose cells wait to be run."""
    study = parse({**STUDY, **changes})
    folder.mkdir()
    write_study(folder, study)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    where = tmp_path_factory.mktemp("served")
    work(begun(where / "tiny & co"), owner="here")
    begun(where / "waiting")
    (where / "something else").mkdir()
    return where


@pytest.fixture(scope="module")
def server(runs):
    with Server(runs, 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def asked(server, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        name = host or f"127.0.0.1:{server.server_port}"
        connection.request(method, path, headers={"Host": name})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_the_studies_of_a_folder_are_listed(server):
    code, text, headers = asked(server, "/")
    assert code == 200
    assert 'href="/tiny%20%26%20co">tiny &amp; co</a>' in text
    assert "2 of 2" in text
    assert "0 of 2" in text
    assert "something else" not in text
    assert headers["Cache-Control"] == "no-store"


def test_studies_have_a_page_also_before_the_first_run(server):
    code, text, _ = asked(server, "/tiny%20%26%20co")
    assert code == 200
    assert "2 of 2 runs are done." in text
    assert "<b>focal" not in text
    code, text, _ = asked(server, "/waiting")
    assert code == 200
    assert "No run has finished yet" in text


def test_nothing_else_can_be_read_or_changed_and_only_from_this_machine(server):
    for path in ("/nothing", "/../served/waiting", "/waiting/study.json", "/something%20else"):
        assert asked(server, path)[:2] == (404, "there is no such study"), path
    for host in ("evil.example", "evil.example:80", "127.0.0.1"):
        code, text, _ = asked(server, "/", host=host)
        assert code == 403, host
        assert "only by 127.0.0.1" in text
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert asked(server, "/", method=method)[0] == 501, method
    assert server.server_address[0] == "127.0.0.1"


def test_reading_writes_nothing(server, runs):
    def files():
        return {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}

    before = files()
    for path in ("/", "/waiting", "/tiny%20%26%20co", "/waiting/version"):
        assert asked(server, path)[0] == 200
    assert files() == before


def changed(folder):
    """Make the study of a folder count other cells, as another version of the package would."""
    held = json.loads((folder / "study.json").read_text())
    held["study"]["recipe"] = {**held["study"].get("recipe", {}), "epochs": 7}
    del held["sha256"]
    (folder / "study.json").write_text(json.dumps(held))
    return folder


def test_a_study_is_read_by_the_cells_that_it_was_run_with(runs, tmp_path, capsys):
    folder = changed(Path(shutil.copytree(runs / "tiny & co", tmp_path / "older")))
    with Server(tmp_path, 0) as made:
        assert "2 of 2 runs are done." in made.page(folder).text
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.*") if path.is_file()}
    assert main(["report", str(folder), "--text"]) == 0
    assert "focal" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in folder.glob("*.*") if path.is_file()}
    assert after == before
    assert main(["report", str(folder)]) == 0
    assert "2 of 2 runs are done." in (folder / "report.html").read_text()


def test_a_damaged_cell_does_not_keep_the_others_from_being_reported(runs, tmp_path, capsys):
    folder = Path(shutil.copytree(runs / "tiny & co", tmp_path / "damaged"))
    next(folder.glob("cells/*/weights.pt")).unlink()
    next(folder.glob("cells/*/test.npz")).unlink()
    assert main(["report", str(folder)]) == 0


def test_a_study_that_cannot_be_read_does_not_hide_the_others(runs, tmp_path):
    shutil.copytree(runs / "waiting", tmp_path / "waiting")
    shutil.copytree(runs / "waiting", tmp_path / "broken")
    (tmp_path / "broken" / "study.json").write_text("no JSON")
    shutil.copytree(runs / "waiting", tmp_path / "empty")
    (tmp_path / "empty" / "study.json").write_text("{}")
    with Server(tmp_path, 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        code, text, _ = asked(made, "/")
        assert code == 200
        assert "0 of 2" in text
        assert "cannot be read: " in text
        for name in ("broken", "empty"):
            code, text, _ = asked(made, f"/{name}")
            assert code == 503
            assert "\n" not in text
        assert asked(made, "/waiting")[0] == 200
        made.shutdown()


def test_a_page_is_rendered_again_only_after_it_expires(runs, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(runs / "waiting", tmp_path / "waiting"))
    with Server(tmp_path, 0) as made:
        first = made.page(folder)
        claim = saved_runs(folder).claim("somebody")
        with claim.lock:
            assert made.page(folder) is first
            monkeypatch.setattr(
                serving, "time", SimpleNamespace(monotonic=lambda: first.expires + 1)
            )
            assert made.page(folder).version != first.version


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda where: begun(where / "a"), "is a folder of studies (a): name one"),
        (lambda where: (where / "study.json").write_text("{}"), "is damaged: re-run the study"),
        (lambda where: None, "run one with calibrant study"),
    ],
)
def test_what_is_not_a_study_is_said_in_one_line(tmp_path, capsys, make, said):
    make(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_and_a_missing_folder_are_said_in_one_line(server, runs, capsys):
    assert main(["report", str(runs), "--serve", "--port", str(server.server_port)]) == 2
    assert capsys.readouterr().err.endswith(": try --port 0\n")
    assert main(["report", str(runs / "none"), "--serve"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_page_follows_a_running_study(server, runs, browser):
    folder = begun(runs / "live", seeds=[0, 1])
    browser.look()
    browser.open(f"{server.url}live")
    assert browser.run("document.getElementById('state').textContent").startswith("0 of 4")
    claim = saved_runs(folder).claim("somebody")
    with claim.lock:
        row = {"epoch": 0, "loss": 1.0, "val_nll": 0.7, "val_ece": 0.1, "val_accuracy": 0.5}
        one, more = json.dumps(row), json.dumps({**row, "epoch": 1, "val_nll": 0.4321})
        (claim.folder / "history.jsonl").write_text(f"{one}\n")
        assert wait_for(browser, "Running: 1. Waiting for a worker: 3.")
        (claim.folder / "history.jsonl").write_text(f"{one}\n{more}\n")
        assert wait_for(browser, "0.4321")
        # What cannot be read for a while is said, and forgotten once it can.
        (claim.folder / "history.jsonl").write_text("{\n")
        assert wait_for(browser, "is damaged", where="#state")
        assert wait_for(browser, "0.4321")
        (claim.folder / "history.jsonl").write_text(f"{one}\n{more}\n")
        assert wait_for(browser, "0 of 4", where="#state")
    assert not [each for each in browser.complaints if "503" not in each]
    assert all(url.startswith(server.url) for url in browser.requests)
    # The page asks for news as long as it is open.
    browser.open("about:blank")


def wait_for(browser, words, where="main"):
    """Whether the page comes to show some words; it asks for news every few seconds."""
    for _ in range(2400):
        if words in browser.run(f"document.querySelector('{where}').innerText"):
            return True
        time.sleep(0.25)
    return False
