"""What is kept of a finished study, and the page that is written from it."""

import csv
import json
from types import SimpleNamespace

import pytest
from benchmarks import results_page, study_results
from small_studies import SMALL, write_toml

from calibrant.study.runner import run
from calibrant.study.spec import read

STUDY = {
    **SMALL,
    "about": "A small one.",
    "metrics": ["accuracy", "nll", "ece"],
    "dataset": [{"name": "blobs", "limit": 400}],
    "model": [{"name": "mlp"}],
    "method": [
        {"name": "cross_entropy"},
        {"name": "gamma_net", "start": 1},
        {"name": "margin_smoothing", "label": "diverges", "alpha": 1e30, "margin": 0, "most": 1e32},
    ],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "studies").mkdir()
    (root / "docs").mkdir()
    run(read(write_toml(root / "studies" / "small.toml", STUDY)), root / "runs" / "small")
    with pytest.MonkeyPatch.context() as patched:
        for module in (results_page, study_results):
            patched.setattr(module, "ROOT", root)
            patched.setattr(module, "PAGE", root / "docs" / "results.md")
        patched.setattr(study_results, "KEPT", root / "studies" / "results")
        study_results.main([str(root / "runs" / "small")])
    return root


def test_test_rows_and_validation_rows_for_selection_are_kept(root):
    with (root / "studies" / "results" / "small.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {row["method"] for row in rows} == {"cross_entropy", "gamma_net start=1"}
    found = {(row["split"], row["calibrator"], row["metric"]) for row in rows}
    assert {each for each in found if each[0] == "val"} == {
        ("val", "none", "nll"),
        ("val", "none", "ece"),
    }
    assert ("test", "temperature", "accuracy") in found


def test_a_cell_that_diverged_is_named_and_what_was_learnt_is_there_seed_by_seed(root):
    about = json.loads((root / "studies" / "results" / "small.json").read_text())
    assert about["cells"] == 6
    assert [each.partition(":")[0] for each in about["failed"]] == ["blobs limit=400, diverges"] * 2
    (gammas,) = about["gammas"].values()
    assert len(gammas) == 2
    assert about["gamma_weights"] == {"gamma_net start=1": [200 * 128 + 128 + 128 + 1] * 2}


def test_the_page_shows_means_and_what_validation_chooses(root):
    page = (root / "docs" / "results.md").read_text()
    with (root / "studies" / "results" / "small.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    values = {
        name: [
            float(row["value"])
            for row in rows
            if (row["method"], row["split"], row["metric"]) == (name, "val", "nll")
        ]
        for name in ("cross_entropy", "gamma_net start=1")
    }
    best = min(values, key=lambda name: sum(values[name]))
    assert f"as trained: {best} ({sum(values[best]) / 2:.4f})" in page
    assert "Did not finish: blobs limit=400, diverges" in page
    assert "Weights of the gamma network: 25,857." in page
    for picture in ("results-small.png", "gamma-small.png"):
        assert f"({picture})" in page
        assert (root / "docs" / picture).stat().st_size > 5000


def test_figures_are_of_the_highest_multipliers_and_of_the_usual_gammas(monkeypatch, tmp_path):
    (tmp_path / "result.json").write_text('{"class_counts": [9, 1]}')
    learnt = {
        "P3": {"multipliers": [1e-6, 1e-6]},
        "PHR": {"multipliers": [0.1, 0.3]},
        "P2": {"multipliers": [0.2, 0.1]},
        "narrow": {"gamma_right": []},
        "usual": {"gamma_right": []},
        "plain": {},
    }
    settings = {"narrow": {"bandwidth": 0.001}, "usual": {"bandwidth": 0.05, "every": 2}}
    chosen = [SimpleNamespace(label=name, settings=settings.get(name, {})) for name in learnt]
    cells = [
        {"method": name, "dataset": data, "seed": seed, "folder": "."}
        for data in ("as it is", "augmented")
        for name in learnt
        for seed in (0, 1)
    ]
    titles = []
    monkeypatch.setattr(study_results, "_history", lambda _, cell: [learnt[cell["method"]]])
    monkeypatch.setattr(study_results, "read_study", lambda _: SimpleNamespace(method=chosen))
    for name in ("multiplier_figure", "gamma_figure"):
        monkeypatch.setattr(study_results, name, lambda *_, title: titles.append(title))
    monkeypatch.setattr(study_results, "save", lambda *_: None)
    study_results._draw(tmp_path, "small", cells)
    assert titles == ["PHR: as it is, seed 0", "usual: augmented, seed 0"]
