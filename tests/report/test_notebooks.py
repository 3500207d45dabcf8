"""What a notebook shows of results, and data frames made of them."""

import numpy as np
import pytest

import calibrant
from calibrant import Predictions, metrics
from calibrant.report.definitions import definition
from calibrant.study.rows import Row, Rows


@pytest.fixture(scope="module")
def predictions():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(200, 3))
    return Predictions(2 * logits, (logits + generator.gumbel(size=logits.shape)).argmax(1))


def test_an_audit_shows_verdict_next_step_table_and_a_diagram_with_its_own_colours(predictions):
    found = calibrant.audit(predictions, name="<b>", resamples=50)
    text = found._repr_html_()
    assert found.verdict in text
    assert "next step: " in text
    assert "&lt;b&gt;" in text
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    assert svg.count('stroke="#') > 10
    assert repr(found) == f"Audit(<b>, 200 examples: {found.verdict})"
    both = calibrant.audit({"a": predictions, "b": predictions}, resamples=20)
    assert repr(both).startswith("ModelAudits(2 models, 200 examples each: the same examples")
    assert both._repr_html_().count("<svg") == 3


def test_a_data_frame_has_a_row_for_each_metric(predictions):
    found = calibrant.audit(predictions, resamples=20)
    frame = found.to_pandas()
    assert list(frame.index) == list(found.metrics)
    value = found.metrics["ece"]
    assert frame.loc["ece"].tolist() == [value.value, value.low, value.high]
    assert "<td>ece</td>" in found.summary._repr_html_()


def test_predictions_are_shown_with_their_size_accuracy_and_confidence(predictions):
    text = predictions._repr_html_()
    assert f"<td>200</td><td>3</td><td>{metrics.accuracy(predictions):.4f}</td>" in text


def test_rows_of_a_study_are_a_list_a_table_and_a_data_frame():
    where = ("d", "m", "o", "<i>", 0, "none", "test")
    rows = Rows([Row(*where, "ece", 0.1, 0.05, 0.15), Row(*where, "nll", None)])
    assert rows == list(rows)
    frame = rows.to_pandas()
    assert frame["value"].tolist()[0] == 0.1
    assert np.isnan(frame["value"][1])
    assert "&lt;i&gt;" in rows._repr_html_()


@pytest.mark.parametrize("name", metrics.METRICS)
def test_every_metric_has_a_definition_in_one_sentence(name):
    found = metrics.METRICS[name].definition
    assert found[0].isupper()
    assert found.endswith(".")
    assert found.count(". ") == 0
    assert definition(metrics.METRICS[name].label) == found


def test_the_page_defines_every_column_by_a_tip_and_in_a_list(predictions):
    found = calibrant.audit(predictions, resamples=20)
    text = found.to_html()
    for name in (*found.metrics, "p-value", "95% interval", "spiegelhalter", "mean probability"):
        words = definition(name).replace("'", "&#x27;")
        assert f'title="{words}"' in text, name
        assert f"<dd>{words}</dd>" in text, name


def test_predictions_are_a_data_frame_with_a_row_for_each_example(predictions):
    named = Predictions(
        predictions.logits,
        predictions.labels,
        weights=np.arange(1.0, 201.0),
        groups=np.arange(200) // 2,
        class_names=["a", "b", "c"],
    )
    frame = named.to_pandas()
    assert list(frame) == [
        *("label", "predicted", "confidence", "correct", "weight", "group", "p_a", "p_b", "p_c")
    ]
    assert frame["correct"].mean() == pytest.approx(metrics.accuracy(predictions))
    assert (frame["label"] == frame["predicted"]).equals(frame["correct"])
    assert np.allclose(frame[["p_a", "p_b", "p_c"]], predictions.probs)
    known = Predictions.from_confidence([0.9, 0.4], [True, False]).to_pandas()
    assert known.to_dict("list") == {"confidence": [0.9, 0.4], "correct": [True, False]}
    many = Predictions(np.eye(51), np.arange(51)).to_pandas()
    assert list(many) == ["label", "predicted", "confidence", "correct"]


def test_results_have_a_short_repr(predictions):
    found = metrics.summary(predictions, resamples=20)
    assert repr(found) == f"Summary(200 examples, 3 classes: {found.verdict})"
    chosen = calibrant.calibrators.select(
        predictions, candidates=["identity", "temperature"], resamples=20
    )
    assert repr(chosen) == f"Selection(2 calibrators, {chosen.verdict})"
    bar = metrics.Interval(0.0808, 0.0612, 0.0923)
    assert repr(bar) == "Interval(0.0808 [0.0612, 0.0923])"
    assert "0.0808 [0.0612, 0.0923]" in bar._repr_html_()
    gap = metrics.Difference(0.1, 0.05, 0.15, 0.01, smallest=0.01)
    assert repr(gap) == "Difference(+0.1000 [+0.0500, +0.1500], p <=0.0100)"
    assert "p &lt;=0.0100" in gap._repr_html_()
    audit = calibrant.audit(predictions, resamples=0)
    assert audit.table == audit.metrics_table()
