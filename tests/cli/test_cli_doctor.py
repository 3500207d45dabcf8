import platform
import re
import sys
import tomllib
from pathlib import Path

import numpy
import torch

from calibrant import __version__
from calibrant.cli import doctor
from calibrant.cli.doctor import EXTRAS, data_state, extra_state, torch_state


def test_says_versions_extras_and_cores(run):
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    for part in (__version__, platform.python_version(), torch.__version__, numpy.__version__):
        assert part in out
    for extra in EXTRAS:
        assert f"[{extra}]" in out
    assert f"{torch.get_num_threads()} threads" in out
    assert "cores" in out


def test_extras_are_those_of_the_project():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = [re.split(r"[\[<>]", each)[0] for each in declared[extra]]
        assert tuple(name for name in names if not name.startswith("calibrant")) == packages


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(EXTRAS, "report", ("matplotlib", "no-such-package"))
    assert extra_state("report").endswith(
        "no-such-package missing: pip install 'calibrant[report]'"
    )


def test_a_broken_torch_is_reported_and_fails(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    works, line = torch_state()
    assert not works
    assert line.startswith("fails to import")
    code, out, _ = run("doctor")
    assert code == 1
    assert "pip install calibrant" in out


def test_a_missing_dependency_fails(run, monkeypatch):
    monkeypatch.setattr(doctor, "version_of", lambda _: None)
    code, out, _ = run("doctor")
    assert code == 1
    assert "missing" in out


def test_the_data_folder_is_looked_for_without_printing_the_environment(run, tmp_path, monkeypatch):
    (tmp_path / "secret-place").mkdir()
    (tmp_path / "secret-place" / "a.npz").touch()
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path / "secret-place"))
    monkeypatch.setenv("SOME_TOKEN", "do-not-print-me")
    _, out, _ = run("doctor")
    assert "found at $CALIBRANT_DATA, 1 npz files" in out
    assert "secret-place" not in out
    assert "do-not-print-me" not in out
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path / "nowhere"))
    assert data_state().startswith("not found at $CALIBRANT_DATA")


def test_the_data_folder_in_the_cache_is_found(tmp_path, monkeypatch):
    (tmp_path / "calibrant" / "data").mkdir(parents=True)
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_state() == f"found at {tmp_path}/calibrant/data, 0 npz files"
