import json

import numpy as np
import pytest
import torch

from calibrant import Predictions, files, metrics
from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.storage import save
from calibrant.data import SYNTHETIC


@pytest.fixture
def fitted(file, tmp_path):
    """A temperature fitted to 400 other examples, in cal.json."""
    other = SYNTHETIC["overconfident"].sample(400, seed=1).predictions
    calibrator = TemperatureScaling.fit(other)
    save(calibrator, tmp_path / "cal.json")
    other.save(tmp_path / "val.npz")
    return calibrator


def test_writes_calibrated_probabilities_and_says_what_changed(run, file, fitted, tmp_path):
    code, out, err = run("apply", "cal.json", file, "-o", "out.npz")
    assert (code, err) == (0, "")
    before = Predictions.load(file)
    after = Predictions.load(tmp_path / "out.npz")
    assert files.names(tmp_path / "out.npz") == ["probs", "labels"]
    torch.testing.assert_close(after.probs, fitted(before.logits).exp())
    assert torch.equal(after.labels, before.labels)
    for name, metric in {"nll": metrics.nll, "ece": metrics.ece}.items():
        assert f"{name}       {metric(before):.4f}  {metric(after):.4f}  " in out
    assert out.startswith("temperature applied to 400 examples of 10 classes\n")
    assert out.endswith("\npredictions: out.npz\n")
    assert "in-sample" not in out


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".safetensors"])
def test_weights_and_groups_stay_in_every_format(run, fitted, tmp_path, suffix):
    given = SYNTHETIC["overconfident"].sample(30, seed=2).predictions
    given = Predictions(
        given.logits, given.labels, weights=np.arange(1, 31), groups=np.arange(30) // 3
    )
    given.save(tmp_path / f"in{suffix}")
    assert run("apply", "cal.json", f"in{suffix}", "-o", f"out{suffix}")[0] == 0
    found = Predictions.load(tmp_path / f"out{suffix}")
    assert torch.equal(found.weights, given.weights)
    assert torch.equal(found.groups, given.groups)


def test_labels_are_not_needed(run, fitted, tmp_path):
    logits = np.random.default_rng(0).normal(size=(7, 10))
    np.savez(tmp_path / "bare.npz", logits=logits)
    code, out, err = run("apply", "cal.json", "bare.npz", "-o", "out.npz")
    assert (code, err) == (0, "")
    assert "no labels: metrics not computed" in out
    assert files.names(tmp_path / "out.npz") == ["logits"]
    found = files.read(tmp_path / "out.npz", ["logits"])["logits"]
    np.testing.assert_array_equal(found, fitted(logits))
    np.savez(tmp_path / "probs.npz", p=np.exp(found))
    _, out, _ = run("apply", "cal.json", "probs.npz", "--probs", "p", "-o", "two.npz", "--json")
    assert json.loads(out)["before"] is None
    two = files.read(tmp_path / "two.npz", ["p"])["p"]
    np.testing.assert_allclose(np.log(two), fitted(found), atol=1e-9)


def test_one_score_of_two_classes_is_enough(run, tmp_path):
    save(TemperatureScaling(classes=2, temperature=2.0), tmp_path / "two.json")
    np.savez(tmp_path / "bare.npz", logits=np.array([2.0, -4.0]))
    assert run("apply", "two.json", "bare.npz", "-o", "out.npz")[0] == 0
    found = files.read(tmp_path / "out.npz", ["logits"])["logits"]
    np.testing.assert_allclose(found, [1.0, -2.0])


def test_the_examples_of_the_fit_are_refused_unless_allowed(run, fitted, tmp_path):
    code, out, err = run("apply", "cal.json", "val.npz", "-o", "out.npz")
    assert (code, out) == (2, "")
    assert err == (
        "calibrant: val.npz holds the examples that cal.json was fitted to: results would be "
        "in-sample and optimistic; use held-out data, or --allow-same\n"
    )
    assert not (tmp_path / "out.npz").exists()
    # In another file they are still the same.
    Predictions.load(tmp_path / "val.npz").save(tmp_path / "copy.safetensors")
    assert run("apply", "cal.json", "copy.safetensors", "-o", "out.npz")[0] == 2
    code, out, _ = run("apply", "cal.json", "val.npz", "-o", "out.npz", "--allow-same")
    assert code == 0
    assert "in-sample and therefore optimistic" in out


def test_probabilities_of_zero_are_noted(run, tmp_path):
    save(TemperatureScaling(classes=2, temperature=2.0), tmp_path / "two.json")
    Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [0, 1]).save(tmp_path / "hard.npz")
    code, _, err = run("apply", "two.json", "hard.npz", "-o", "out.npz", "--as", "logits")
    assert code == 0
    assert err.startswith("note: 1 of 4 probabilities are exactly 0: replaced by 1e-38, since ")
    assert np.isfinite(files.read(tmp_path / "out.npz", ["logits"])["logits"]).all()


def test_json_is_alone_on_stdout(run, file, fitted):
    _, out, err = run("apply", "cal.json", file, "-o", "out.npz", "--json")
    assert err == ""
    record = json.loads(out)
    assert record["calibrator_name"] == "temperature"
    assert record["after"]["nll"] < record["before"]["nll"]
    assert (record["examples"], record["same"]) == (400, False)
    assert record["predictions"] == "out.npz"


def test_classes_in_another_order_than_in_the_fit_are_refused(run, file, tmp_path):
    names = "A,B,C,D,E,F,G,H,I,J"
    assert run("fit", file, "--names", names, "--calibrator", "vector", "-o", "vector.json")[0] == 0
    apply = ("apply", "vector.json", file, "--allow-same", "-o", "out.npz")
    code, _, err = run(*apply, "--names", names[::-1])
    assert code == 2
    assert "classes are ['J', 'I', 'H', 'G'," in err
    assert "those of the fit ['A', 'B', 'C', 'D'," in err
    assert err.endswith(": give them in the order of the fit, with --names or --positive\n")
    assert not (tmp_path / "out.npz").exists()
    code, _, err = run(*apply, "--names", names.replace("J", "Z"))
    assert code == 0
    assert err.endswith(": check that they mean the same\n")
    for same in ((), ("--names", names)):
        code, _, err = run(*apply, *same)
        assert (code, err) == (0, "")
