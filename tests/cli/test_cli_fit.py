import json
import re
import sys
import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions, calibrators, metrics
from calibrant.calibrators import TemperatureScaling, selection, storage, vector_matrix
from calibrant.calibrators.storage import load
from calibrant.cli.fit import BLEND, CRITERIA


def test_says_what_was_fitted_and_what_it_changed(run, file, tmp_path):
    code, out, err = run("fit", file, "--calibrator", "temperature", "-o", "cal.json")
    assert (code, err) == (0, "")
    p = Predictions.load(file)
    expected = TemperatureScaling.fit(p)
    assert load(tmp_path / "cal.json").temperature == expected.temperature
    assert out.startswith("temperature, fitted to 400 examples of 10 classes\n")
    assert f"\n  temperature {expected.temperature:g}\n" in out
    after = p.map(expected)
    for name, metric in {"nll": metrics.nll, "ece": metrics.ece}.items():
        assert f"{name}       {metric(p):.4f}  {metric(after):.4f}  " in out
    assert "in-sample and therefore optimistic; evaluate on held-out data" in out
    assert out.endswith("\ncalibrator: cal.json\n")
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_alone_on_stdout(run, file):
    code, out, err = run("fit", file, "--calibrator", "temperature", "-o", "cal.json", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    p = Predictions.load(file)
    assert record["calibrator_name"] == "temperature"
    assert record["parameters"] == {"temperature": TemperatureScaling.fit(p).temperature}
    assert record["measured_on"] == "the examples of the fit"
    assert record["before"]["nll"] == pytest.approx(metrics.nll(p), rel=1e-9)
    assert record["after"]["nll"] < record["before"]["nll"]
    assert (record["examples"], record["classes"], record["converged"]) == (400, 10, True)
    assert record["calibrator"] == "cal.json"
    assert record["selection"] is None


@pytest.mark.parametrize("method", calibrators.CALIBRATORS)
def test_every_calibrator_goes_from_fit_to_apply(run, method, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("val", "test"):
        logits = generator.normal(size=(1500, 3)) * 4
        labels = (logits / 3 + generator.gumbel(size=logits.shape)).argmax(1)
        Predictions(logits, labels).save(tmp_path / f"{name}.npz")
    code, out, _ = run("fit", "val.npz", "--calibrator", method, "-o", "cal.json")
    assert code == 0
    assert out.startswith(method)
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz")
    assert (code, err) == (0, "")
    expected = Predictions.load(tmp_path / "test.npz").map(load(tmp_path / "cal.json"))
    found = Predictions.load(tmp_path / "out.npz")
    assert metrics.nll(found) == pytest.approx(metrics.nll(expected))


SELECTION = ("--folds", 2, "--criterion", "brier", "--seed", 7, "--preserve-class")


def selected(file):
    """The predictions, and what the library selects by the options above."""
    p = Predictions.load(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return p, calibrators.select(p, folds=2, criterion="brier", seed=7, preserve_class=True)


def test_auto_shows_the_comparison_and_saves_the_choice(run, file, tmp_path):
    code, out, _ = run("fit", file, "--calibrator", "auto", "-o", "cal.json", *SELECTION)
    assert code == 0
    p, expected = selected(file)
    assert out.startswith(f"{expected}\n\n{expected.name}, fitted to 400 examples")
    torch.testing.assert_close(load(tmp_path / "cal.json")(p.logits), expected.best(p.logits))
    _, out, _ = run("fit", file, "-o", "cal.json", "--json", *SELECTION)
    found = json.loads(out)["selection"]
    assert found["chosen"] == expected.name
    assert {row["name"] for row in found["candidates"]} == {
        name for name, kind in calibrators.CALIBRATORS.items() if kind.keeps_argmax
    }


def test_auto_says_which_calibrators_were_left_out_and_why(run, file, monkeypatch):
    monkeypatch.setattr(vector_matrix, "MAX_BYTES", 1000)
    code, out, _ = run("fit", file, "--calibrator", "auto", "-o", "cal.json", "--folds", 2)
    assert code == 0
    assert re.search(
        r"^skipped: .*\bstructured_matrix.*: fitting a matrix of 10 x 10 classes needs about",
        out,
        re.M,
    )
    _, out, _ = run("fit", file, "-o", "cal.json", "--folds", 2, "--json")
    assert "limit" in json.loads(out)["selection"]["skipped"]["matrix"]


def test_the_default_saves_the_blend_with_its_weights(run, file, tmp_path):
    code, out, _ = run("fit", file, "-o", "cal.json", *SELECTION)
    assert code == 0
    p, expected = selected(file)
    blend = expected.blend
    assert len(expected.parts) > 1
    note = "saved: the blend; --calibrator auto saves the selected one alone"
    said = f"blend, fitted to 400 examples of 10 classes\n  parts {expected.shown_weights}\n\n"
    assert out.startswith(f"{expected}\n{note}\n\n{said}")
    assert run("fit", file, "--calibrator", "blend", "-o", "same.json", *SELECTION)[0] == 0
    saved = load(tmp_path / "cal.json"), load(tmp_path / "same.json")
    for found in saved:
        torch.testing.assert_close(found(p.logits), blend(p.logits))
    other = Predictions(p.logits + 1, p.labels)
    other.save(tmp_path / "other.npz")
    code, out, err = run("apply", "cal.json", "other.npz", "-o", "out.npz")
    assert (code, err) == (0, "")
    assert out.startswith("blend applied to 400 examples of 10 classes\n")
    found = Predictions.load(tmp_path / "out.npz")
    assert metrics.nll(found) == pytest.approx(metrics.nll(other.map(blend)))
    code, _, err = run("apply", "cal.json", file, "-o", "out.npz")
    assert (code, "examples that cal.json was fitted to" in err) == (2, True)
    _, out, _ = run("fit", file, "-o", "cal.json", "--json", *SELECTION)
    record = json.loads(out)
    assert (record["calibrator_name"], record["converged"]) == ("blend", blend.origin.converged)
    assert record["parameters"]["parts"] == record["selection"]["parts"]
    assert [each["name"] for each in record["selection"]["parts"]] == list(expected.parts)
    assert sum(each["weight"] for each in record["selection"]["parts"]) == pytest.approx(1)
    assert record["selection"]["chosen"] == expected.name


def test_a_budget_limits_the_comparison_only(run, file):
    code, out, _ = run("fit", file, "-o", "cal.json", "--budget", 1e-6, *SELECTION)
    assert code == 0
    assert "the budget of 1e-06 s was used up" in out
    code, _, err = run("fit", file, "--calibrator", "temperature", "-o", "c.json", "--budget", 1)
    assert (code, "--budget limits the comparison of auto and blend" in err) == (2, True)


def test_criteria_and_the_name_of_a_blend_are_those_of_the_library():
    assert tuple(selection.CRITERIA) == CRITERIA
    assert storage.BLEND == BLEND


def test_names_of_arrays_are_passed_on(run, tmp_path):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(200, 3)) * 3
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    np.savez(tmp_path / "named.npz", z=logits, y=labels)
    tail = ("--calibrator", "temperature", "-o", "cal.json")
    assert run("fit", "named.npz", "--logits", "z", "--labels", "y", *tail)[0] == 0


def test_nothing_heavy_is_loaded_to_refuse_a_suffix(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run("export", "cal.json", "-o", "cal.pt")[0] == 2


def test_a_parameter_at_its_bound_is_reported_in_text_json_and_file(run, tmp_path):
    Predictions(np.eye(3)[[0, 1, 2] * 9] * 5, [0, 1, 2] * 9).save(tmp_path / "easy.npz")
    given = ("fit", "easy.npz", "--calibrator", "temperature", "-o", "cal.json")
    code, out, err = run(*given)
    remark = "did not converge: T hit the lower bound 0.05"
    assert (code, f"warning: {remark}" in out) == (0, True)
    assert err.startswith("note: T hit the lower bound")
    assert err.count("T hit the lower bound") == 1
    assert not load(tmp_path / "cal.json").origin.converged
    record = json.loads(run(*given, "--json")[1])
    assert record["converged"] is False
    assert record["remarks"][0].startswith(remark)


def test_a_fit_that_made_it_worse_is_said_on_stderr_in_text_and_json(run, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(900, 3)) * 2
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    Predictions(logits, labels).save(tmp_path / "val.npz")
    bad = TemperatureScaling(classes=3, temperature=0.3)
    monkeypatch.setattr(TemperatureScaling, "fit", classmethod(lambda *_: bad))
    given = ("fit", "val.npz", "--calibrator", "temperature", "-o", "cal.json")
    _, out, err = run(*given)
    assert err.startswith("note: temperature: NLL rose from 0.")
    assert "note: temperature: ECE rose from 0.0" in err
    assert "\nwarning: NLL rose from 0." in out
    assert len(json.loads(run(*given, "--json")[1])["remarks"]) == 2


@pytest.mark.filterwarnings("ignore:.*the given zero_floor")
def test_the_floor_of_zeros_is_shown_saved_and_can_be_set(run, tmp_path):
    generator = np.random.default_rng(0)
    probs = generator.multinomial(20, [0.6, 0.3, 0.1], 300) / 20
    p = Predictions.from_probs(probs, generator.choice(3, 300, p=[0.6, 0.3, 0.1]))
    p.save(tmp_path / "votes.npz")
    given = ("fit", "votes.npz", "--calibrator", "temperature", "-o", "cal.json")
    code, out, err = run(*given)
    assert code == 0
    assert f"\n  zero_floor {p.estimated_zero_floor:g}\n" in out
    assert f"exactly 0: replaced by {p.estimated_zero_floor:.3g}, less than all others" in err
    _, out, err = run(*given, "--zero-floor", "0.001", "--json")
    assert "replaced by 0.001, the given zero_floor" in err
    record = json.loads(out)
    assert (record["zero_floor"], record["zero_probs"]) == (0.001, p.zero_probs)
    assert load(tmp_path / "cal.json").zero_floor == 0.001
    run("apply", "cal.json", "votes.npz", "-o", "out.npz", "--allow-same")
    expected = p.map(TemperatureScaling.fit(p.with_zero_floor(0.001)))
    found = Predictions.load(tmp_path / "out.npz")
    assert metrics.nll(found) == pytest.approx(metrics.nll(expected))
    code, _, err = run(*given, "--zero-floor", "2")
    assert (code, "zero_floor must lie between 0 and 1, got 2" in err) == (2, True)
