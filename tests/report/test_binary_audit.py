"""The audit of two classes speaks of the positive class."""

import numpy as np
import pytest

import calibrant
from calibrant import Predictions
from calibrant.metrics import metrics_for


def rare(n=4000, *, shift=-1.9, slope=1.0, seed=0):
    """A rare positive class; labels follow the log-odds of the model times `slope` plus `shift`."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(size=n) * 1.3 - 1.6
    labels = generator.random(n) < 1 / (1 + np.exp(-(slope * odds + shift)))
    return Predictions.from_binary(odds, labels.astype(int), kind="logits")


def test_an_over_predicted_positive_class_is_not_called_under_confident():
    found = calibrant.audit(rare(), resamples=200)
    assert found.verdict.startswith("over-predicts class 1: mean probability 2")
    assert "times as high" in found.verdict
    assert "confident" not in found.verdict
    assert "positive class 1: base rate" in found.facts
    assert next(iter(found.metrics)) == "calibration_in_the_large"
    assert set(found.metrics) == set(metrics_for(2))


def test_the_other_class_can_be_the_positive_one():
    found = calibrant.audit(rare(), resamples=200, positive=0)
    assert found.verdict.startswith("under-predicts class 0")
    assert found.summary.class_biases[1].name == "0"


def test_probabilities_that_are_too_extreme_have_a_slope_below_one():
    found = calibrant.audit(rare(shift=0.0, slope=0.5, n=8000), resamples=200)
    assert "probabilities are too extreme: calibration slope 0.49" in found.verdict


def test_calibrated_probabilities_have_no_finding():
    found = calibrant.audit(rare(shift=0.0, seed=2), resamples=200)
    assert found.verdict == "no miscalibration detected with 4,000 examples"


def test_thresholds_compare_expected_and_observed_positives():
    predictions = rare()
    table = calibrant.audit(predictions, resamples=0, thresholds=[0.5]).thresholds_table()
    (row,) = table.rows
    probs, labels = predictions.positive_probs.numpy(), predictions.labels.numpy()
    above = probs >= 0.5
    texts = [cell.text for cell in row]
    assert texts[:2] == ["0.5", str(above.sum())]
    assert float(texts[2].replace(",", "")) == pytest.approx(probs[above].sum(), abs=0.06)
    assert int(texts[3]) == labels[above].sum()


def test_the_page_shows_the_positive_class_first():
    page = calibrant.audit(rare(400), resamples=20).to_html()
    first = page.index("Reliability of the probability of class 1")
    assert first < page.index("Reliability and confidence of the predicted class")
    assert "ROC AUC, average precision, accuracy: higher is better." in page
    assert "Calibration slope: best at 1." in page
    assert "Expected and observed" in page
    assert "Tests of calibration" in page


def test_the_class_table_has_signed_errors_and_names_classes_in_the_verdict():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(5000, 3))
    true = logits + np.array([0.0, 0.0, 0.6])
    labels = (true + generator.gumbel(size=logits.shape)).argmax(1)
    names = ["ant", "bee", "cat"]
    found = calibrant.audit(Predictions(logits, labels, class_names=names), resamples=200)
    row = [cell.text for cell in found.classes_table().rows[0]]
    assert row[0] == "cat"
    assert float(row[4]) == pytest.approx(float(row[3]) - float(row[2]), abs=2e-4)
    assert "mean probability differs from frequency: cat -" in found.verdict


def test_a_single_low_p_value_is_not_hidden():
    from calibrant.metrics import Interval, TestResult
    from calibrant.metrics.verdict import judge

    metrics = {"overconfidence": Interval(0.0, -0.01, 0.01)}
    tests = {"spiegelhalter": TestResult(2.1, 0.035), "consistency": TestResult(0.02, 0.4, 0.001)}
    said = judge(1000, metrics, tests, ()).text
    assert said == "weak evidence of miscalibration in one of 2 tests (spiegelhalter p 0.0350)"
    tests["consistency"] = TestResult(0.05, 0.001, 0.001)
    said = judge(1000, metrics, tests, ()).text
    assert said.startswith("calibrated on average, but not at every level of confidence")
    assert "consistency p <=0.0010" in said


def test_sums_of_weights_have_one_decimal():
    predictions = rare().reweighted(np.random.default_rng(0).random(4000))
    found = calibrant.audit(predictions, resamples=0, thresholds=[0.5])
    texts = [cell.text for cell in found.thresholds_table().rows[0]]
    assert all(len(text.partition(".")[2]) == 1 for text in texts[:4])
    assert "." not in found.summary.table().rows[0][0].text
    assert found.to_dict()["thresholds"][0]["threshold"] == 0.5
