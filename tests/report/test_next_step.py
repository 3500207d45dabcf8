"""The next step after an audit: a calibrator with its held-out gain, or the reason why none."""

from dataclasses import replace

import numpy as np
import pytest

import calibrant
from calibrant import Predictions, metrics
from calibrant.cli import main
from calibrant.report import next_step as module
from calibrant.report.next_step import next_step


def drawn(n=1500, *, scale=1.0, classes=4, seed=0, bias=0.0):
    """Labels that follow the softmax of the logits, which are then multiplied by `scale`."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, classes)) * 2
    shifted = logits + bias * np.arange(classes)
    labels = (shifted + generator.gumbel(size=logits.shape)).argmax(1)
    return Predictions(scale * logits, labels)


def test_an_over_confident_model_needs_a_temperature_and_the_gain_is_held_out():
    sharp = drawn(scale=2.5)
    found = calibrant.audit(sharp, resamples=100).next_step
    assert found.calibrator == "temperature"
    assert found.line == "calibrant.calibrators.TemperatureScaling.fit(predictions)"
    assert found.before["nll"] == pytest.approx(metrics.nll(sharp))
    assert found.before["ece"] == pytest.approx(metrics.ece(sharp))
    # As good as the true probabilities, up to noise; a fit to all examples is in-sample.
    assert found.after["nll"] == pytest.approx(metrics.nll(drawn()), abs=0.01)
    assert found.after["nll"] > metrics.nll(
        sharp.map(calibrant.calibrators.TemperatureScaling.fit(sharp))
    )
    assert found.after["ece"] < found.before["ece"] / 3
    assert found.gain.high < 0
    assert "5-fold cross-validation on 1,500 examples" in found.expected


def test_two_classes_with_a_wrong_base_rate_need_more_than_a_temperature():
    found = next_step(drawn(3000, classes=2, bias=2.0), "miscalibrated", file="day 1.npz")
    assert found.calibrator == "platt"
    assert {"nll", "binary_ece", "accuracy"} == set(found.before)
    assert found.line == "calibrant fit day 1.npz --calibrator platt -o cal.json"


def test_calibrated_predictions_need_no_repair_and_unclear_ones_need_more_data():
    assert str(next_step(drawn(), "calibrated")) == "next step: no repair needed"
    assert "collect more examples" in next_step(drawn(), "unclear").advice
    assert calibrant.audit(drawn(), resamples=0).next_step is None


def test_a_gain_that_may_be_chance_is_not_recommended():
    found = next_step(drawn(300), "miscalibrated", file="a.npz")
    assert found.calibrator == ""
    assert "gain in held-out NLL from temperature or structured_vector" in found.advice
    assert "calibrant fit a.npz -o cal.json" in found.advice


def test_a_temperature_at_its_bound_is_not_recommended():
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=400)
    right = Predictions(np.eye(3)[labels] * 2, labels)
    found = next_step(right, "miscalibrated")
    assert found.calibrator != "temperature"
    if not found.calibrator:
        assert "T hit the lower bound" in found.advice


def test_a_reason_is_given_once_and_no_fit_is_advised_if_none_can_succeed():
    alone = drawn(300, classes=2).relabelled(np.zeros(300, dtype=int))
    found = next_step(alone, "miscalibrated", file="a.npz")
    assert found.advice == "no calibrator can be fitted: labels hold a single class, 0"
    once = drawn(300, classes=2).relabelled(np.eye(300, dtype=int)[0])
    advice = next_step(once, "miscalibrated").advice
    assert "platt and beta: cannot fit: labels hold a single class, 0, in cross-valid" in advice
    calibrated = next_step(drawn(300, classes=2), "miscalibrated").advice
    assert "held-out NLL from temperature, platt or beta. Compare" in calibrated


def test_many_examples_are_subsampled_and_the_text_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST", 1000)
    found = next_step(drawn(3000, scale=3.0), "miscalibrated")
    assert (found.examples, found.subsampled) == (1000, True)
    assert "a random 1,000 of the examples" in found.expected


def test_page_terminal_and_json_have_the_command(tmp_path, capsys):
    path = tmp_path / "a b.npz"
    drawn(600, scale=3.0).save(path)
    command = f"calibrant fit '{path}' --calibrator temperature -o cal.json"
    page = tmp_path / "page.html"
    options = ["--resamples", "50", "--no-figure", "--page", str(page)]
    assert main(["audit", str(path), *options]) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert f"next step: {command}" in said
    assert "expected: lower held-out NLL; NLL" in said
    text = page.read_text()
    assert 'class="verdict miscalibrated"' in text
    assert command.replace("'", "&#39;") in text
    # The command does what it says.
    assert (
        main(["fit", str(path), "--calibrator", "temperature", "-o", str(tmp_path / "c.json")]) == 0
    )


def test_each_of_several_models_has_its_own_step():
    found = calibrant.audit({"sharp": drawn(scale=3.0), "true": drawn()}, resamples=50)
    found = found.with_files({"sharp": "runs/s.npz", "true": "t.npz"})
    text = found.to_html()
    assert "calibrant fit runs/s.npz --calibrator temperature -o s.json" in text
    assert found.audits["true"].output == "t.json"
    assert "no repair needed" in text
    assert found.to_dict()["models"]["true"]["next_step"]["calibrator"] == ""


def test_the_step_is_computed_once(monkeypatch):
    found = calibrant.audit(drawn(scale=3.0), resamples=50)
    first = found.next_step
    monkeypatch.setattr(module, "next_step", None)
    assert found.next_step is first
    assert replace(found, file="x.npz").file == "x.npz"
