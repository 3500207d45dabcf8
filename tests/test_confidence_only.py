"""Predictions of which only confidence and correctness of the predicted class are known."""

import numpy as np
import pytest
import torch

import calibrant
from calibrant import Predictions, files, metrics
from calibrant.calibrators import TemperatureScaling

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(400, 4)) * 3
LABELS = (LOGITS / 2 + RNG.gumbel(size=LOGITS.shape)).argmax(1)
WHOLE = Predictions(LOGITS, LABELS)
TOP = Predictions.from_confidence(WHOLE.confidence, WHOLE.correct)
NEEDS_ALL = {"nll", "brier", "classwise_ece", "simplex_ece"}


@pytest.mark.parametrize("name", [*metrics.metrics_for(4), "top_label_brier"])
def test_top_label_metrics_are_those_of_the_whole_distribution_and_others_are_refused(name):
    metric = metrics.METRICS[name]
    assert metric.every_class == (name in NEEDS_ALL)
    if name in NEEDS_ALL:
        with pytest.raises(ValueError, match="only the confidence of the predicted class is known"):
            metric(TOP)
        return
    assert metric(TOP) == pytest.approx(metric(WHOLE), rel=1e-12)
    settings = {"resamples": 40, "seed": 1}
    one, two = (metrics.interval(metric, each, **settings) for each in (TOP, WHOLE))
    assert (one.low, one.high) == pytest.approx((two.low, two.high), abs=1e-9)


def test_an_audit_lists_what_can_be_measured_and_says_what_is_left_out(tmp_path):
    found = calibrant.audit(TOP, resamples=40)
    whole = calibrant.audit(WHOLE, resamples=40)
    assert set(whole.metrics) - set(found.metrics) == NEEDS_ALL
    assert set(found.metrics) - set(whole.metrics) == {"top_label_brier"}
    for name, test in found.tests.items():
        assert test.p_value == pytest.approx(whole.tests[name].p_value, rel=1e-12)
    assert found.verdict.startswith("over-confident")
    assert found.facts.startswith("400 examples, top label only, mean confidence 0.")
    assert found.remarks[0].startswith("nll, brier, classwise_ece, simplex_ece: left out")
    assert calibrant.audit(TOP, resamples=0).remarks == found.remarks[:1]
    assert "Reliability and confidence" in found.save(tmp_path / "a.html").read_text()
    several = calibrant.audit({"a": TOP, "b": TOP}, resamples=40)
    assert several.paired
    assert several.to_html()


def test_confidence_below_one_half_is_not_turned_round():
    found = Predictions.from_confidence([0.3, 0.9], [1, 0])
    assert found.confidence.tolist() == [0.3, 0.9]
    assert found.correct.tolist() == [1.0, 0.0]
    assert metrics.accuracy(found.take([0])) == 1
    both = Predictions.concat([found, found.reweighted([2, 1])])
    assert (len(both), both.top_label_only) == (4, True)


@pytest.mark.parametrize("suffix", files.FORMATS)
def test_files_restore_it(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    TOP.save(path)
    assert files.names(path) == ["confidence", "correct"]
    for found in (Predictions.load(path), Predictions.load(path, confidence="confidence")):
        torch.testing.assert_close(found.confidence, TOP.confidence)
        assert torch.equal(found.correct, TOP.correct)


def test_wrong_values_and_uses_are_named():
    for given, words in (
        (([0.5, 1.5], [0, 1]), r"confidence must lie in \[0, 1\], got 1.5 at row 1"),
        (([0.5, 0.6], [0, 2]), "correct must be 0 or 1, got 2 at row 1"),
        (([0.5, 0.6], [0]), r"correct must be \(2,\), got \(1,\)"),
        (([], []), "need at least 1 example"),
    ):
        with pytest.raises(ValueError, match=words):
            Predictions.from_confidence(*given)
    for use in (
        lambda: TOP.probs,
        lambda: TOP.with_positive(1),
        lambda: TemperatureScaling.fit(TOP),
    ):
        with pytest.raises(ValueError, match="only the confidence"):
            use()
