"""The audit of several labels: ranking, verdict, page."""

import json
import math
import re

import numpy as np
import pytest

import calibrant
from calibrant import MultiLabel


def drawn(n=1500, **options):
    """Five labels: the second is too extreme, the fourth too high, the last is never known."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.5, size=(n, 5))
    labels = (generator.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    labels[generator.random(labels.shape) < 0.1] = np.nan
    labels[:, 4] = np.nan
    logits = logits * [1, 3, 1, 1, 1] + [0, 0, 0, 1, 0]
    return MultiLabel(logits, labels, label_names=["a", "b<i>", "c", "d", "e"], **options)


@pytest.fixture(scope="module")
def found():
    return calibrant.audit(drawn(), name="labels.npz", resamples=30)


def test_the_verdict_names_what_was_planted(found):
    assert found.state == "miscalibrated"
    assert re.match(r"2 of 5 labels are miscalibrated: .*slope 0\.3", found.verdict)
    assert {each.name for each in found.miscalibrated} == {"b<i>", "d"}
    assert {each.name for each in found.labels[:2]} == {"b<i>", "d"}
    assert found.labels[-1].name == "e"
    assert next(each for each in found.labels if each.name == "d").error > 0.1
    assert any("not defined for e" in each for each in found.remarks)


def test_calibrated_labels_are_said_to_be_fine_and_few_examples_unclear():
    generator = np.random.default_rng(1)
    logits = generator.normal(-1, 1.5, size=(600, 4))
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    fine = calibrant.audit(MultiLabel(logits, labels), resamples=20)
    assert fine.verdict == "no miscalibration detected in 4 labels with 600 examples"
    extreme = calibrant.audit(MultiLabel(3 * logits, labels), resamples=20)
    assert re.search(r"labels are miscalibrated: label \d \(", extreme.verdict)
    assert calibrant.audit(MultiLabel(logits[:20], labels[:20]), resamples=20).state == "unclear"


def test_the_page_holds_every_label_escaped(found, tmp_path):
    page = found.save(tmp_path / "labels.html").read_text()
    assert page == found.to_html()
    assert "b&lt;i&gt;" in page
    assert "b<i>" not in page
    assert "2 of 5 labels are miscalibrated" in page
    assert page.count("<svg") >= 6
    assert "All metrics" in found._repr_html_()


def test_plain_values_and_frames_agree(found):
    record = json.loads(json.dumps(found.to_dict()))
    frame = found.to_pandas()
    assert record["macro"]["nll"]["value"] == frame.loc["(macro)", "nll"]
    assert list(frame.index) == ["a", "b<i>", "c", "d", "e", "(macro)", "(micro)"]
    assert math.isnan(frame.loc["e", "nll"])
    assert found.ece == found.summary.macro["binary_ece"].value


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_without_resamples_or_with_groups_nothing_is_tested():
    plain = calibrant.audit(drawn(300), resamples=0)
    assert (plain.verdict, plain.state) == ("", None)
    heads = [each.title for each in plain.averages_table().columns]
    assert heads == ["metric", "macro", "micro", "meaning"]
    grouped = calibrant.audit(drawn(300, groups=np.arange(300) // 3), resamples=20)
    assert grouped.verdict == ""
    assert any("labels are not tested" in each for each in grouped.remarks)
    assert grouped.to_html()
