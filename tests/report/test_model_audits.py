"""Audits of several models side by side."""

import numpy as np
import pytest

import calibrant
from calibrant import Predictions, metrics


def three(n=1500, seed=0, classes=4):
    """An over-confident, a calibrated and an under-confident model of the same labels."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, classes)) * 2
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    scales = {"sharp": 2.0, "true": 1.0, "flat": 0.5}
    return {name: Predictions(scale * logits, labels) for name, scale in scales.items()}


def test_marks_every_model_against_the_best_of_its_column():
    found = calibrant.audit(three(), resamples=200)
    assert found.paired
    assert [found.mark("nll", name) for name in found.audits] == ["worse", "best", "worse"]
    assert found.mark("accuracy", "flat") in ("best", "equal")
    assert found.mark("overconfidence", "flat") == ""
    assert "true has the lowest log loss" in found.verdict
    assert "true is the best calibrated" in found.verdict
    row = dict(zip([c.title for c in found.table.columns], found.table.rows[1], strict=True))
    assert (row["model"].text, row["NLL"].mark) == ("true", "best")
    assert float(row["NLL"].value) == pytest.approx(metrics.nll(three()["true"]), rel=1e-6)


def test_each_audit_is_that_of_the_model_alone():
    models = three(400)
    found = calibrant.audit(models, resamples=50, seed=3)
    alone = calibrant.audit(models["flat"], resamples=50, seed=3)
    assert found.audits["flat"].metrics == alone.metrics
    assert found.to_dict()["models"]["flat"]["verdict"] == alone.verdict


def test_models_on_other_examples_are_compared_unpaired():
    first, second = three(600)["true"], three(900, seed=1)["sharp"]
    found = calibrant.audit({"monday": first, "tuesday": second}, resamples=200)
    assert not found.paired
    assert "unpaired" in found.facts
    assert found.mark("debiased_ece", "tuesday") == "worse"
    with pytest.raises(ValueError, match="a paired comparison needs the same examples"):
        calibrant.audit({"a": first, "b": second}, paired=True, resamples=20)


def test_an_unpaired_difference_has_the_variance_of_both_sides():
    first, second = three(2000)["true"], three(500, seed=1)["true"]
    found = metrics.compare(metrics.accuracy, first, second, paired=False, resamples=2000)
    rates = metrics.accuracy(first), metrics.accuracy(second)
    error = np.sqrt(sum(p * (1 - p) / n for p, n in zip(rates, (2000, 500), strict=True)))
    assert found.value == pytest.approx(rates[0] - rates[1])
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_a_data_frame_has_a_row_for_each_model():
    found = calibrant.audit(three(200), resamples=20)
    frame = found.to_pandas()
    assert list(frame.index) == ["sharp", "true", "flat"]
    value = found.audits["true"].metrics["ece"]
    assert frame.loc["true", ["ece", "ece_low", "ece_high"]].tolist() == pytest.approx(
        [value.value, value.low, value.high]
    )


def test_the_page_and_the_notebook_escape_names(tmp_path):
    found = calibrant.audit({"<script>": three(200)["true"], "b": three(200)["flat"]}, resamples=20)
    page = found.save(tmp_path / "page.html").read_text()
    for text in (page, found._repr_html_()):
        assert "<script>:" not in text
        assert "&lt;script&gt;" in text
    assert page.count('<svg class="chart') == 3


def test_two_classes_are_compared_by_the_positive_class():
    found = calibrant.audit(three(300, classes=2), resamples=50)
    titles = [column.title for column in found.table.columns]
    assert {"ROC AUC", "calibration slope", "calibration in the large"} <= set(titles)
    assert "probability of" not in found.verdict


def test_refuses_models_that_cannot_be_compared():
    with pytest.raises(ValueError, match="need at least one model"):
        calibrant.audit({})
    mixed = {"a": three(50)["true"], "b": three(50, classes=3)["true"]}
    with pytest.raises(ValueError, match="models differ in their number of classes"):
        calibrant.audit(mixed)
