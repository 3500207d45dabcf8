"""Several labels on the command line: audit, fit, apply."""

import json

import numpy as np
import pandas
import pytest

from calibrant import MultiLabel, audit

NAMES = ["cat", "dog", "eel"]
COLUMNS = ["--probs", "p_*", "--labels", "y_*", "--ignore", "id"]


@pytest.fixture
def files(tmp_path):
    """Labels whose second is over-confident, as npz and as tables of other order."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.5, size=(1200, 3))
    labels = (generator.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    labels[generator.random(labels.shape) < 0.1] = np.nan
    both = MultiLabel(logits * [1, 3, 1], labels, label_names=NAMES).split(0.5, seed=0)
    for name, part in zip(("val", "test"), both, strict=True):
        part.save(tmp_path / f"{name}.npz")
        frame = part.to_pandas().assign(id=[f"row {at}" for at in range(len(part))])
        frame = frame[["id", "y_eel", "y_cat", "p_dog", "y_dog", "p_eel", "p_cat"]]
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        frame.to_parquet(tmp_path / f"{name}.parquet")
    return tmp_path


def test_audit_ranks_labels_and_says_what_it_understood(run, files):
    code, out, err = run("audit", "test.npz", "--multi-label", "--resamples=30")
    assert code == 0, err
    assert "logits of 3 labels: logits" in out
    assert "1 of 3 labels is miscalibrated: dog" in out
    lines = [line.split()[0] for line in out.splitlines() if line.split()[:1] and line[:3] in NAMES]
    assert lines[0] == "dog"
    page = (files / "test.audit.html").read_text()
    assert "calibrant fit test.npz --multi-label -o cal.json" in page


def test_audit_of_columns_prints_the_numbers_of_the_library(run, files):
    code, out, err = run("audit", "test.csv", "--multi-label", *COLUMNS, "--json", "--resamples=20")
    assert code == 0, err
    record = json.loads(out)
    own = audit(MultiLabel.load(files / "test.npz"), resamples=20)
    assert record["verdict"] == own.verdict
    for name, bar in own.summary.macro.items():
        assert record["macro"][name]["value"] == pytest.approx(bar.value, rel=1e-6)
        assert record["macro"][name]["low"] == pytest.approx(bar.low, rel=1e-6)


def test_max_ece_is_compared_with_the_mean_over_labels(run, files):
    command = ("audit", "test.npz", "--multi-label", "--no-intervals", "--no-page", "--max-ece")
    assert run(*command, "0.3")[0] == 0
    code, _, err = run(*command, "0.01")
    assert code == 1
    assert "macro binary_ece 0.0" in err
    assert "is above --max-ece 0.01" in err


def test_several_labels_without_the_option_are_refused_with_it_as_advice(run, files):
    np.savez("plain.npz", logits=np.zeros((4, 3)), labels=np.eye(4, 3))
    for file in ("plain.npz", "test.npz"):
        code, _, err = run("audit", file)
        assert code == 2
        assert "add --multi-label" in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--by=id", "--adaptive", "--thresholds=0.5", "--confidence=c"])
def test_options_without_a_meaning_are_refused(run, files, option):
    code, _, err = run("audit", "test.npz", "--multi-label", option)
    assert code == 2
    assert f"{option.split('=')[0]} cannot be used with --multi-label" in err
    if option == "--by=id":
        assert "audits of several labels have no slices" in err
    assert "two classes" not in run("audit", "test.npz", "--multi-label", "--normalize")[2]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_apply_writes_the_table_back_with_calibrated_columns(run, files, suffix):
    assert run("fit", "val.npz", "--multi-label", "--calibrator=platt", "-o", "cal.json")[0] == 0
    code, out, err = run("apply", "cal.json", f"test.{suffix}", *COLUMNS, "-o", f"out.{suffix}")
    assert code == 0, err
    assert "probs of 3 labels: p_dog to p_cat" in out
    read = pandas.read_csv if suffix == "csv" else pandas.read_parquet
    before, after = read(f"test.{suffix}"), read(f"out.{suffix}")
    assert list(after) == list(before)
    for name in ("id", "y_cat", "y_dog", "y_eel"):
        pandas.testing.assert_series_equal(before[name], after[name])
    from calibrant.calibrators import load

    expected = MultiLabel.load("test.npz").map(load("cal.json")).probs.numpy()
    assert np.allclose(after[["p_cat", "p_dog", "p_eel"]], expected, atol=1e-7)
    code, out, _ = run("apply", "cal.json", f"test.{suffix}", *COLUMNS, "-o", "other.npz", "--json")
    record = json.loads(out)
    assert record["after"]["binary_ece"] < record["before"]["binary_ece"]


def test_apply_keeps_the_arrays_of_an_archive_and_needs_no_labels(run, files):
    assert run("fit", "val.npz", "--multi-label", "-o", "cal.json")[0] == 0
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz")
    assert (code, err) == (0, "")
    with np.load("test.npz") as before, np.load("out.npz") as after:
        assert set(before) == set(after) == {"logits", "labels", "label_names"}
        assert (before["labels"] == after["labels"]).all()
        np.savez("unlabelled.npz", logits=before["logits"])
    code, out, err = run("apply", "cal.json", "unlabelled.npz", "-o", "probs.npz", "--as", "probs")
    assert code == 0, err
    assert "no labels: metrics not computed" in out
    with np.load("out.npz") as first, np.load("probs.npz") as second:
        assert np.allclose(1 / (1 + np.exp(-first["logits"])), second["probs"])


def test_apply_refuses_the_examples_of_the_fit_and_other_labels(run, files):
    assert run("fit", "val.npz", "--multi-label", "-o", "cal.json")[0] == 0
    code, _, err = run("apply", "cal.json", "val.npz", "-o", "out.npz")
    assert code == 2
    assert "holds the examples that cal.json was fitted to" in err
    code, _, err = run("apply", "cal.json", "test.npz", "--names", "a,b,c", "-o", "out.npz")
    assert code == 2
    assert "give the same labels" in err
    code, _, err = run("export", "cal.json", "-o", "cal.onnx")
    assert code == 2
    assert "no ONNX graph of their own" in err


def test_fit_compares_calibrators_and_lists_labels(run, files):
    code, out, err = run("fit", "val.csv", "--multi-label", *COLUMNS, "-o", "cal.json", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert set(record["selection"]) == {"temperature", "platt", "beta"}
    assert [each["slice"] for each in record["slices"]] == [["dog"], ["eel"], ["cat"]]
    assert record["after"]["nll"] < record["before"]["nll"]
    code, _, err = run("fit", "val.npz", "--multi-label", "--by=id", "-o", "cal.json")
    assert code == 2
    assert "--by cannot be used with --multi-label" in err
