"""`calibrant apply` with other class priors: known, estimated, saved."""

import json

import numpy as np
import pytest
import torch

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import (
    Identity,
    MultiLabelCalibrator,
    PriorShift,
    SlicedCalibrator,
    TemperatureScaling,
    estimate_prior,
    load,
    save,
)


def gaussians(n, prior, *, seed, source=None):
    """Over-confident logits of unit Gaussian classes."""
    generator, prior = np.random.default_rng(seed), np.asarray(prior)
    centres = 1.5 * np.eye(len(prior))
    labels = generator.choice(len(prior), n, p=prior)
    x = centres[labels] + generator.normal(size=(n, len(prior)))
    logits = x @ centres.T + np.log(prior if source is None else source)
    return Predictions(2 * logits, labels)


@pytest.fixture
def files(tmp_path):
    """Even classes in val.npz, 10 % of class 1 in test.npz and new.npz, a fit in cal.json."""
    val = gaussians(1500, [0.5, 0.5], seed=0)
    test, new = (gaussians(1500, [0.9, 0.1], seed=s, source=[0.5, 0.5]) for s in (1, 2))
    val.save(tmp_path / "val.npz")
    test.save(tmp_path / "test.npz")
    np.savez(tmp_path / "new.npz", logits=new.logits.numpy())
    fitted = TemperatureScaling.fit(val)
    save(fitted, tmp_path / "cal.json")
    return val, test, new, fitted


def test_known_priors_replace_those_of_the_fit(run, files, tmp_path):
    val, test, _, fitted = files
    code, out, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", "--prior", "0.1")
    assert (code, err) == (0, "")
    shift = PriorShift.fit(val, target=0.1, calibrator=fitted)
    after = Predictions.load(tmp_path / "out.npz")
    torch.testing.assert_close(after.probs, test.map(shift).probs)
    rows = [line.split() for line in out.splitlines()]
    assert ["0", f"{float(shift.source[0]):.4f}", "0.9000"] in rows
    assert "class  source prior  target prior" in out
    before, corrected = (float(line) for line in out.split("nll")[1].split()[:2])
    assert corrected < 0.8 * before


@pytest.mark.parametrize("method", ["em", "bbse", "bbse_soft"])
def test_priors_are_estimated_from_a_file_without_labels(run, files, method, tmp_path):
    val, _, new, fitted = files
    more = ["--prior-method", method, "--source-predictions", "val.npz"]
    command = ["apply", "cal.json", "test.npz", "-o", "out.npz", "--estimate-prior", "new.npz"]
    code, out, err = run(*command, *more)
    assert (code, err) == (0, "")
    assert f"priors by {method} from 1,500 unlabelled examples" in out
    found = estimate_prior(new.map(fitted), val.map(fitted), method=method)
    low, high = float(found.low[1]), float(found.high[1])
    assert f"{float(found.prior[1]):.4f}  [{low:.4f}, {high:.4f}]" in out
    assert abs(float(found.prior[1]) - 0.1) < 0.05
    record = json.loads(run(*command, *more, "--json")[1])["priors"]
    assert record["target"] == pytest.approx(found.prior.tolist())
    assert (record["method"], record["examples"], record["level"]) == (method, 1500, 0.95)


def test_intervals_include_the_sampling_of_the_class_frequencies_of_the_fit(run, files):
    _, _, new, fitted = files
    command = ["apply", "cal.json", "test.npz", "-o", "out.npz", "--estimate-prior", "new.npz"]
    counted = json.loads(run(*command, "--json")[1])["priors"]
    exact = json.loads(run(*command, "--json", "--source-prior", "0.5")[1])["priors"]
    shares = fitted.origin.class_frequencies
    found = estimate_prior(new.map(fitted), shares, source_examples=fitted.origin.examples)
    assert [counted["low"], counted["high"]] == [
        pytest.approx(each.tolist()) for each in (found.low, found.high)
    ]
    assert counted["high"][1] - counted["low"][1] > exact["high"][1] - exact["low"][1]
    # A file with the same priors in it has the same fit.
    run(*command, "--save-calibrator", "new.json")
    again = json.loads(run("apply", "new.json", *command[2:], "--json")[1])["priors"]
    assert again["low"] == pytest.approx(counted["low"])


def test_the_calibrator_with_its_priors_is_saved_and_its_priors_replaced(run, files, tmp_path):
    common = ["apply", "cal.json", "test.npz", "-o", "out.npz"]
    code, out, err = run(*common, "--prior", "0.1", "--save-calibrator", "shifted.json")
    assert (code, err) == (0, "")
    assert out.endswith("predictions: out.npz\ncalibrator: shifted.json\n")
    shift = load(tmp_path / "shifted.json")
    assert shift.target.tolist() == pytest.approx([0.9, 0.1])
    code, out, _ = run("apply", "shifted.json", "test.npz", "-o", "two.npz")
    assert code == 0
    assert out.startswith("temperature with other class priors applied to 1,500 examples")
    one, two = (Predictions.load(tmp_path / name) for name in ("out.npz", "two.npz"))
    torch.testing.assert_close(one.probs, two.probs)
    run("apply", "shifted.json", "test.npz", "-o", "three.npz", "--prior", "0.5")
    run(*common[:3], "-o", "four.npz", "--prior", "0.5", "--allow-same")
    three, four = (Predictions.load(tmp_path / name) for name in ("three.npz", "four.npz"))
    torch.testing.assert_close(three.probs, four.probs)
    code, _, err = run("export", "shifted.json", "-o", "shifted.onnx")
    assert (code, err) == (0, "")


def test_priors_of_several_classes_are_a_list_or_by_name(run, tmp_path):
    val = gaussians(600, [0.4, 0.3, 0.3], seed=0)
    named = Predictions(val.logits, val.labels, class_names=["cat", "dog", "owl"])
    save(Identity.fit(named), tmp_path / "cal.json")
    gaussians(50, [0.4, 0.3, 0.3], seed=1).save(tmp_path / "test.npz")
    found = []
    for given in ("0.7,0.2,0.1", "owl=0.1, cat=0.7, dog=0.2", "owl=0.1,cat=0.7"):
        code, out, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", "--prior", given)
        assert (code, err) == (0, "")
        assert "owl" in out
        found.append(Predictions.load(tmp_path / "out.npz").probs)
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])
    expected = PriorShift.fit(val, target=[0.7, 0.2, 0.1])
    torch.testing.assert_close(found[0], gaussians(50, [0.4, 0.3, 0.3], seed=1).map(expected).probs)


def test_many_classes_are_cut_in_the_table(run, tmp_path):
    k = 30
    p = Predictions(np.eye(k), np.arange(k))
    save(Identity.fit(p), tmp_path / "cal.json")
    Predictions(2 * np.eye(k), np.arange(k)).save(tmp_path / "test.npz")
    given = ",".join(["0.5", *[str(0.5 / (k - 1))] * (k - 1)])
    _, out, _ = run("apply", "cal.json", "test.npz", "-o", "out.npz", "--prior", given)
    assert "and 10 more classes: see --json" in out


def test_slices_and_priors_work_together(run, tmp_path):
    val, test = (gaussians(900, [0.5, 0.5], seed=s) for s in (0, 1))
    slices = np.array(["north", "south"])[np.arange(900) % 2]
    sliced = SlicedCalibrator.fit(val, {"region": slices})
    save(sliced, tmp_path / "cal.json")
    np.savez(tmp_path / "test.npz", logits=test.logits, labels=test.labels, region=slices)
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", "--prior", "0.2")
    assert (code, err) == (0, "")
    source = sliced.overall.origin.class_frequencies
    expected = sliced.map(test, slices).map(PriorShift.of_priors(source, 0.2))
    found = Predictions.load(tmp_path / "out.npz", ignore=["region"])
    torch.testing.assert_close(found.probs, expected.probs)
    more = ["--prior", "0.2", "--save-calibrator", "new.json"]
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", *more)
    assert code == 2
    assert "a calibrator of slices cannot be saved with new priors" in err


def test_several_labels_have_no_class_priors(run, tmp_path):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 2))
    labels = (logits + generator.logistic(size=(300, 2)) > 0).astype(int)
    save(MultiLabelCalibrator.fit(MultiLabel(logits, labels)), tmp_path / "cal.json")
    np.savez(tmp_path / "test.npz", logits=logits, labels=labels)
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", "--prior", "0.2")
    assert code == 2
    assert "a calibrator of several labels takes no --prior" in err


REFUSED = {
    "both": (["--prior", "0.1", "--estimate-prior", "new.npz"], "not both"),
    "method": (["--prior", "0.1", "--prior-method", "em"], "is for --estimate-prior"),
    "source alone": (["--source-prior", "0.1"], "is for --prior or --estimate-prior"),
    "saved alone": (["--save-calibrator", "new.json"], "is for --prior or --estimate-prior"),
    "two sources": (
        ["--prior", "0.1", "--source-prior", "0.1", "--source-predictions", "val.npz"],
        "give --source-prior or --source-predictions, not both",
    ),
    "suffix": (["--prior", "0.1", "--save-calibrator", "x.txt"], "calibrators are saved as .json"),
    "no number": (
        ["--prior", "often"],
        "--prior must be one number for two classes (0.1), a number",
    ),
    "too many": (["--prior", "0.1,0.2,0.7"], "--prior must be 2 numbers, one for each class"),
    "zero": (["--prior", "0"], "--prior must be positive for every class, got 0 for class 1"),
    "twice": (["--prior", "0=0.1,0=0.2"], "--prior names a class twice"),
    "unknown class": (["--prior", "cat=0.1"], "--prior: no class 'cat'"),
    "unknown class of the source": (
        ["--prior", "0.1", "--source-prior", "cat=0.1"],
        "--source-prior: no class 'cat'",
    ),
    "black box": (
        ["--estimate-prior", "new.npz", "--prior-method", "bbse"],
        "bbse needs the labels of the source: add --source-predictions",
    ),
    "unknown method": (
        ["--estimate-prior", "new.npz", "--prior-method", "emm"],
        "no method 'emm'; did you mean em?",
    ),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_priors_are_one_line_and_exit_code_2(run, files, given, words, tmp_path):
    code, out, err = run("apply", "cal.json", "test.npz", "-o", "out.npz", *given)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "out.npz").exists()


def test_a_file_of_an_earlier_release_needs_the_priors_of_the_source(run, files, tmp_path):
    save(TemperatureScaling(classes=2, temperature=2.0), tmp_path / "old.json")
    command = ["apply", "old.json", "test.npz", "-o", "out.npz", "--prior", "0.1"]
    code, _, err = run(*command)
    assert code == 2
    assert "add --source-prior or --source-predictions" in err
    assert run(*command, "--source-prior", "0.5")[0] == 0
    one = Predictions.load(tmp_path / "out.npz").probs
    assert run(*command, "--source-predictions", "val.npz")[0] == 0
    two = Predictions.load(tmp_path / "out.npz").probs
    torch.testing.assert_close(one, two, atol=0.02, rtol=0)
