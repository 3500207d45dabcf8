"""Where a line fails, from files where rows do not say it; classes by their names."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_studies import FOCAL, PLAIN, small_study, write_lines

from calibrant import metrics
from calibrant.calibrators import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.report.findings import findings
from calibrant.report.measured import calibrated_test, class_errors, excess
from calibrant.report.saved import read_saved
from calibrant.report.sections import PANELS

NAMES = ["cat", "dog", "ship", "truck", "frog", "bird"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of two methods whose rows have neither classes nor overconfidence."""
    made = small_study(
        tmp_path_factory.mktemp("study"), methods=(PLAIN, FOCAL), seeds=(3,), failed=()
    )
    rows = [json.loads(line) for line in (made / "rows.jsonl").read_text().splitlines()]
    kept = [row for row in rows if ": " not in row["metric"] + row["split"]]
    write_lines(made / "rows.jsonl", kept)
    return made


def test_classes_and_confidence_are_measured_after_the_calibrator_of_the_line(folder):
    (found,) = findings(read_saved(folder))
    line = found.verdict.line
    (cell,) = [each for each in found.group.cells if each.labels["method"] == line.name]
    test = cell.test
    if line.calibrator != "none":
        test = test.map(CALIBRATORS[line.calibrator].fit(cell.val))
    errors = metrics.per_class_ece(test)
    worst = f"class {np.argmax(errors)} ({100 * errors.max():.1f} %)"
    assert f"error of a class (seed 3): {worst}" in found.weak_spots[0]
    assert f"The mean over classes is {100 * errors.mean():.1f} %" in found.weak_spots[0]


def test_confidence_is_said_where_its_interval_is_clear(folder):
    (group,) = read_saved(folder).groups()
    sharp = excess(calibrated_test(group.cells[0], "none"))
    assert sharp.value == pytest.approx(metrics.overconfidence(group.cells[0].test))
    assert sharp.low > 0
    assert calibrated_test(group.cells[0], "isotonic") is None


def test_the_map_of_classes_shows_both_stages_and_the_names_that_rows_have(folder):
    (group,) = read_saved(folder).groups()
    panel = PANELS["classes"](group)
    assert f"{PLAIN}, class 5: " in panel.html
    assert panel.html.count("<figcaption>After temperature") == 1
    named = [{**group.rows[0], "metric": f"classwise_ece: {each}"} for each in NAMES]
    both = [{**row, "split": "test", "calibrator": "none", "value": 0.25} for row in named]
    panel = PANELS["classes"](replace(group, rows=both))
    assert f"{PLAIN}, cat: 0.2500" in panel.html
    assert "class cat" not in panel.html


def test_classes_of_predictions_with_names_are_called_by_them(folder):
    (group,) = read_saved(folder).groups()
    test = group.cells[0].test
    named = class_errors(Predictions(test.logits, test.labels, class_names=NAMES))
    assert list(named) == NAMES
    assert list(named.values()) == pytest.approx(metrics.per_class_ece(test))
