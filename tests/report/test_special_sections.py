"""Panels that only some studies have: method state, shifts, images; weak spots from files."""

import base64
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from markup import parsed, tips
from matplotlib.image import imread
from saved_studies import COUNTS, FOCAL, PLAIN, read_lines, small_study, write_lines

from calibrant import metrics
from calibrant.calibrators import CALIBRATORS
from calibrant.data import Split
from calibrant.predictions import Predictions
from calibrant.report.findings import findings
from calibrant.report.measured import calibrated_test, class_errors, excess
from calibrant.report.saved import read_saved
from calibrant.report.sections import PANELS
from calibrant.training.results import pixel_runs

BINS = 5
NAMES = ["cat", "dog", "ship", "truck", "frog", "bird"]


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    return small_study(place, methods=(PLAIN, FOCAL), seeds=(0,), failed=())


@pytest.fixture
def place(made_once, tmp_path):
    """A copy to be changed."""
    return Path(shutil.copytree(made_once, tmp_path / "copy"))


def group_of(place):
    (group,) = read_saved(place).groups()
    return group


def change_history(place, more):
    path = place / "cells" / f"{1:016x}" / "history.jsonl"
    rows = read_lines(path)
    write_lines(path, [{**row, **more(row["epoch"])} for row in rows])


def test_a_learnt_gamma_is_drawn_along_training_and_against_confidence(place):
    change_history(
        place,
        lambda epoch: {
            **{f"gamma_{part}": epoch + at for at, part in enumerate(("q05", "q50", "q95"))},
            "gamma_mean": epoch,
            "gamma_std": 0.5,
            "gamma_right": [float(b) for b in range(BINS)],
            "count_right": [0, 9, 10, 100, 100],
            "gamma_wrong": [2.0, None, 1.0, 1.0, 1.0],
            "count_wrong": [50] * BINS,
        },
    )
    panel = PANELS["gamma"](group_of(place))
    found = tips(panel)
    assert found[3] == "epoch 4\nmedian: 4 (3 to 5)"
    # Bins with fewer than 10 examples, or without a number, are left out.
    assert found[4:] == [
        "confidence 0.1000\nwrong: 2",
        "confidence 0.5000\nright: 2\nwrong: 1",
        "confidence 0.7000\nright: 3\nwrong: 1",
        "confidence 0.9000\nright: 4\nwrong: 1",
    ]
    assert PANELS["multipliers"](group_of(place)) is None
    for word in ("collapsed", "oscillates", "fell", "no line"):
        assert word not in panel.html


def test_signs_that_learning_gamma_failed_are_told_with_their_number_and_meaning(place):
    change_history(
        place,
        lambda epoch: {
            **dict.fromkeys(("gamma_q05", "gamma_q50", "gamma_q95", "gamma_mean"), 5.0),
            "gamma_std": 0.0,
            "gamma_right": [5.0] * BINS,
            "count_right": [50] * BINS,
            "gamma_wrong": [5.0] * BINS,
            "count_wrong": [9] * BINS,
            "gamma_collapsed": float(epoch > 1),
            "meta_oscillates": 0.0,
            "accuracy_fell": float(epoch == 3),
        },
    )
    panel = PANELS["gamma"](group_of(place))
    root = parsed(panel)
    (note,) = [each.text for each in root.iter("small")]
    assert "gamma_collapsed in 2 of 4 epochs: gamma is nearly the same for all examples" in note
    assert "accuracy_fell in 1 of 4 epochs: validation accuracy stays" in note
    assert "oscillates" not in note
    # Too few wrong examples for a line: the legend does not promise one, and the note says why.
    assert "no line for wrong examples: fewer than 10 of them in every bin" in note
    assert "wrong" not in "".join(root.find("ul").itertext())
    assert "right" in "".join(root.find("ul").itertext())


@pytest.mark.parametrize(
    ("column", "word"), [("multipliers", "multiplier"), ("alpha", "penalty weight")]
)
def test_multipliers_are_drawn_against_the_frequency_of_the_class(place, column, word):
    # Of CALS-ALM, rho has a chart of its own after the multipliers.
    rho = {"rho": [2.0] * len(COUNTS)} if column == "multipliers" else {}
    change_history(
        place, lambda epoch: {column: [epoch * c / 10 for c in range(len(COUNTS))], **rho}
    )
    panel = PANELS["multipliers"](group_of(place))
    assert f">{word}</text>" in panel.html
    found = tips(panel)
    assert found[-1] == f"class 5: {2 if column == 'multipliers' else 1.5:g}, {COUNTS[5]} examples"
    assert found[1].splitlines()[:3] == ["epoch 2", "class 0: 0", "class 1: 0.1000"]
    # The rarest class is the strongest line.
    assert 'class="line ink k1"' in panel.html
    assert panel.html.index("line ink k4") < panel.html.index("line ink k1")


def test_multipliers_of_many_classes_are_a_range(place):
    change_history(place, lambda epoch: {"multipliers": [epoch * c for c in range(50)]})
    found = tips(PANELS["multipliers"](group_of(place)))
    assert found[1] == "epoch 2\nmean over the classes: 24.5 (0 to 49)"


def test_shifted_splits_are_lines_over_severity(place):
    rows = read_saved(place).rows
    like = next(row for row in rows if row["metric"] == "ece" and row["split"] == "test")
    shifted = [
        {**like, "method": name, "split": f"shift: blur {severity}", "value": severity / 10}
        for name in (PLAIN, FOCAL)
        for severity in (1, 3)
    ]
    other = {**like, "split": "another <set>", "value": 0.25}
    write_lines(place / "rows.jsonl", [*rows, *shifted, other])
    panel = PANELS["shift"](group_of(place))
    found = tips(panel)
    assert found[0].startswith(f"severity 0\n{PLAIN}: {like['value']:.4f}")
    assert f"severity 3\n{PLAIN}: 0.3000\n{FOCAL}: 0.3000" in found
    assert "another &lt;set&gt;: ECE, as trained" in panel.html
    root = parsed(panel)
    lines = [[cell.text for cell in line] for line in root.find(".//tbody")]
    assert lines == [[PLAIN, "0.2500"], [FOCAL, "-"]]


def dense(place, runs, shape=(5, 6)):
    """Replace the predictions by those of three images, and say where pixels of two lie."""
    folder = place / "cells" / f"{0:016x}"
    record = json.loads((folder / "result.json").read_text())
    record["pixels"] = {"shape": shape, "runs": runs}
    (folder / "result.json").write_text(json.dumps(record))
    logits = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
    labels = np.zeros((3, 5, 6), dtype=np.int64)
    labels[1, 0, 2:4] = 255
    found = Predictions.from_dense(logits, labels, ignore_index=255)
    found.save(folder / "test.npz")
    return np.where(labels == 255, np.nan, logits.argmax(1) == labels)


def pixels_of(picture):
    """Grey values of an embedded picture."""
    embedded = picture.get("src").removeprefix("data:image/png;base64,")
    return (255 * imread(io.BytesIO(base64.b64decode(embedded)))).round()


def test_maps_show_every_valid_pixel_at_its_position(place):
    right = dense(place, [[30], [2, 2, 26]])
    panel = PANELS["maps"](group_of(place))
    pictures = parsed(panel).findall(".//img")
    assert [(each.get("width"), each.get("height")) for each in pictures] == [("6", "5")] * 4
    # All of a method stands together.
    assert panel.html.count("<figure") == 1
    assert tips(panel)[3] == (
        f"errors of {PLAIN}, image 2, {np.nanmean(right[1]):.1%} of the pixels correct"
    )
    for image in (0, 1):
        shown = pixels_of(pictures[2 * image + 1])
        expected = np.where(np.isnan(right[image]), 255, np.where(right[image] == 1, 215, 25))
        assert np.array_equal(shown, expected)


def test_maps_are_left_out_if_images_do_not_match_their_record(place):
    dense(place, [[28, 2], [30]])
    assert PANELS["maps"](group_of(place)) is None


def test_a_training_records_the_positions_of_valid_pixels():
    labels = torch.tensor([[[255, 1, 1], [255, 255, 0]], [[0, 1, 1], [0, 1, 255]]])
    split = Split(torch.zeros(2, 3, 2, 3), labels, torch.arange(2))
    found = pixel_runs(split, 255)
    assert found == {"shape": [2, 3], "runs": [[0, 1, 2, 2, 1], [5, 1]]}


def test_many_methods_stay_readable_and_small(place):
    names = [f"method {at}" for at in range(18)]
    first = json.loads((place / "cells.json").read_text())["cells"][0]
    cells = [{**first, "method": name} for name in names]
    (place / "cells.json").write_text(json.dumps({"cells": cells}))
    rows = [row for row in read_saved(place).rows if row["method"] == PLAIN]
    write_lines(place / "rows.jsonl", [{**row, "method": name} for name in names for row in rows])
    group = group_of(place)
    found = {key: PANELS[key](group) for key in PANELS if key not in ("landscape", "curvature")}
    assert sum(len(panel.html) for panel in found.values() if panel) < 1_000_000
    entries = parsed(found["reliability"]).findall(".//div[@class='side']/ul/li")
    assert len(entries) == 16
    assert found["reliability"].about.endswith("The first 16 of 18 together; below is each alone.")
    for key, where in {"reliability": "details", "curves": ".", "confidence": "."}.items():
        captions = parsed(found[key]).findall(f"{where}//figcaption")
        assert [each.text.strip() for each in captions] == names, key


def test_panels_are_drawn_without_numbers_that_are_not_finite(place):
    path = place / "cells" / f"{0:016x}"
    for name in ("history.jsonl", "probe.jsonl"):
        rows = read_lines(path / name)
        wild = [math.nan, None, math.inf, "text"]
        write_lines(path / name, [dict.fromkeys(row, wild[at % 4]) for at, row in enumerate(rows)])
    rows = [{**row, "value": None} for row in read_saved(place).rows]
    write_lines(place / "rows.jsonl", rows)
    group = group_of(place)
    made = {key: make(group) for key, make in PANELS.items() if key != "landscape"}
    found = {key: panel for key, panel in made.items() if panel is not None}
    assert {"reliability", "curves", "curvature"} <= set(found)
    for panel in found.values():
        parsed(panel)
        assert "nan" not in panel.html


@pytest.fixture
def folder(place):
    """A study of two methods whose rows have neither classes nor overconfidence."""
    rows = read_lines(place / "rows.jsonl")
    kept = [row for row in rows if ": " not in row["metric"] + row["split"]]
    write_lines(place / "rows.jsonl", kept)
    return place


def test_classes_and_confidence_are_measured_after_the_recommended_calibrator(folder):
    (found,) = findings(read_saved(folder))
    line = found.verdict.line
    (cell,) = [each for each in found.group.cells if each.labels["method"] == line.name]
    test = cell.test
    if line.calibrator != "none":
        test = test.map(CALIBRATORS[line.calibrator].fit(cell.val))
    errors = metrics.per_class_ece(test)
    worst = f"class {np.argmax(errors)} ({100 * errors.max():.1f} %)"
    assert f"error of a class (seed 0): {worst}" in found.weak_spots[0]
    assert f"The mean over classes is {100 * errors.mean():.1f} %" in found.weak_spots[0]


def test_confidence_is_said_where_its_interval_is_clear(folder):
    group = group_of(folder)
    sharp = excess(calibrated_test(group.cells[0], "none"))
    assert sharp.value == pytest.approx(metrics.overconfidence(group.cells[0].test))
    assert sharp.low > 0
    assert calibrated_test(group.cells[0], "isotonic") is None


def test_the_map_of_classes_shows_both_stages_and_the_names_that_rows_have(folder):
    group = group_of(folder)
    panel = PANELS["classes"](group)
    assert f"{PLAIN}, class 5: " in panel.html
    assert panel.html.count("<figcaption>After temperature") == 1
    named = [{**group.rows[0], "metric": f"classwise_ece: {each}"} for each in NAMES]
    both = [{**row, "split": "test", "calibrator": "none", "value": 0.25} for row in named]
    panel = PANELS["classes"](replace(group, rows=both))
    assert f"{PLAIN}, cat: 0.2500" in panel.html
    assert "class cat" not in panel.html


def test_classes_of_predictions_with_names_are_called_by_them(folder):
    group = group_of(folder)
    test = group.cells[0].test
    named = class_errors(Predictions(test.logits, test.labels, class_names=NAMES))
    assert list(named) == NAMES
    assert list(named.values()) == pytest.approx(metrics.per_class_ece(test))
