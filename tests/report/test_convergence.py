"""A calibrator at its bound is said to be, and is never recommended."""

import numpy as np
import pytest
from saved_studies import PLAIN, read_lines, small_study, write_lines

from calibrant.predictions import Predictions
from calibrant.report.comparison import DAGGER
from calibrant.report.display_names import display_names
from calibrant.report.findings import findings
from calibrant.report.saved import read_saved
from calibrant.report.study_page import page
from calibrant.study.rows import measured_rows

REMARK = "T hit the lower bound 0.05: every prediction is correct, the examples are separable"


@pytest.mark.filterwarnings("ignore:T hit the lower bound")
def test_rows_say_that_a_temperature_is_at_its_bound():
    labels = np.arange(60) % 3
    sure, noisy = np.eye(3)[labels] * 4, np.eye(3)[(labels + (np.arange(60) % 5 == 0)) % 3] * 4
    where = dict.fromkeys(("dataset", "model", "optimizer", "method"), "x")
    given = {"calibrators": ["temperature"], "names": ["nll"], "resamples": 20}
    rows = measured_rows(where, 0, Predictions(sure, labels), Predictions(noisy, labels), **given)
    remarks = {row.calibrator: row.remark for row in rows}
    assert remarks["none"] == ""
    assert remarks["temperature"].startswith("T hit the lower bound")


def test_an_unconverged_calibrator_has_a_dagger_no_mark_and_no_recommendation(tmp_path):
    folder = small_study(tmp_path, methods=(PLAIN,), failed=())
    (before,) = findings(read_saved(folder))
    best = before.verdict.line
    assert best.calibrator == "temperature"
    rows = read_lines(folder / "rows.jsonl")
    for row in rows:
        if row["calibrator"] == "temperature" and row["method"] == best.name:
            row["remark"] = REMARK
    write_lines(folder / "rows.jsonl", rows)
    saved = read_saved(folder)
    (found,) = findings(saved)
    assert (found.verdict.line.name, found.verdict.line.calibrator) != (best.name, "temperature")
    line = next(each for each in found.comparison.combinations if each.remarks)
    assert {reading.mark for reading in line.readings.values()} == {"unknown"}
    assert any(REMARK in spot for spot in found.weak_spots)
    text = page(saved)
    assert f"temperature scaling {DAGGER}" in text
    assert '<option value="temperature">temperature scaling</option>' in text
    assert f"{DAGGER} The calibrator did not converge; it is not recommended." in text


def test_labels_that_studies_make_become_plain_names_and_others_stay():
    labels = ["cals_alm margin=4", "focal gamma=3", "My CALS", "brier", "cross_entropy adjust=1"]
    assert list(display_names(labels).values()) == [
        "CALS-ALM (margin 4)",
        "focal loss (gamma 3)",
        "My CALS",
        "Brier score",
        "cross entropy (adjust 1)",
    ]
    # Two that would look the same keep their labels.
    assert display_names(["cals_hr", "CALS-HR"]) == {"cals_hr": "cals_hr", "CALS-HR": "CALS-HR"}
