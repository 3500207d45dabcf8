"""Rows of long-tailed data and of pixels: by frequency, by class, by image."""

import numpy as np
import pytest
import torch
from small_studies import SMALL

from calibrant import metrics
from calibrant.calibrators import TemperatureScaling, select
from calibrant.data import SYNTHETIC, shifted
from calibrant.predictions import Predictions
from calibrant.report.study_page import study_page
from calibrant.study import runner
from calibrant.study.rows import measured_rows
from calibrant.study.spec import parse
from calibrant.training.building import built
from calibrant.training.predict import predict

LABELS = {"dataset": "d", "model": "m", "optimizer": "o", "method": "x"}


def drawn(n: int, k: int, seed: int, **extras) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * 2
    return Predictions(logits, torch.randint(k, (n,), generator=generator), **extras)


def rows_of(val: Predictions, test: Predictions, counts: list[int]) -> dict:
    rows = measured_rows(
        LABELS, 0, val, test, calibrators=["temperature"], names=["accuracy", "nll"],
        resamples=10, counts=counts,
    )  # fmt: skip
    return {(row.calibrator, row.split, row.metric): row for row in rows}


def test_blend_and_auto_are_those_of_a_selection_on_the_validation_data():
    val, test = (SYNTHETIC["tempered"].sample(200, seed=seed).predictions for seed in (0, 1))
    names = ["temperature", "auto", "blend"]
    found = measured_rows(
        LABELS, 0, val, test, calibrators=names, names=["nll"], resamples=10
    )  # fmt: skip
    values = {row.calibrator: row.value for row in found if row.split == "test"}
    selection = select(val)
    assert values["auto"] == pytest.approx(metrics.nll(test.map(selection.best)))
    assert values["blend"] == pytest.approx(metrics.nll(test.map(selection.blend)))
    assert values["temperature"] == metrics.nll(test.map(TemperatureScaling.fit(val)))
    assert parse({**SMALL, "calibrators": names}).calibrators == tuple(names)


def test_long_tailed_training_makes_rows_of_frequent_and_rare_classes():
    val, test = drawn(300, 4, 0), drawn(300, 4, 1, class_names=("a", "b", "c", "d"))
    found = rows_of(val, test, [900, 101, 50, 3])
    tail = test.take(test.labels == 3)
    assert found["none", "test: tail", "accuracy"].value == metrics.accuracy(tail)
    medium = test.take(test.labels == 2)
    assert found["none", "test: medium", "nll"].value == metrics.nll(medium)
    head = test.take(test.labels < 2)
    assert found["none", "test: head", "nll"].value == metrics.nll(head)
    row = found["temperature", "test: head", "nll"]
    assert row.low < row.value < row.high
    errors = metrics.per_class_ece(test)
    assert found["none", "test", "classwise_ece: b"].value == errors[1]
    assert found["none", "test", "classwise_ece: b"].low is None


def test_even_classes_make_no_such_rows():
    found = rows_of(drawn(100, 3, 0), drawn(100, 3, 1), [120, 100, 90])
    assert {split for _, split, _ in found} == {"val", "test"}
    assert {metric for _, _, metric in found} == {"accuracy", "nll"}


def test_pixels_have_an_error_within_images_and_one_over_all():
    groups = torch.arange(400) // 40
    found = rows_of(drawn(400, 3, 0, groups=groups), drawn(400, 3, 1, groups=groups), [5, 5, 5])
    expected = metrics.group_ece(drawn(400, 3, 1, groups=groups))
    assert found["none", "test", "group_ece"].value == pytest.approx(expected, abs=1e-15)


def test_a_study_of_long_tailed_data_writes_them(alone, tmp_path):
    study = {**SMALL, "seeds": [0], "metrics": ["accuracy"], "recipe": {"epochs": 1}}
    study["dataset"] = [{"name": "blobs", "n": 3000, "classes": 4, "long_tail": 100.0}]
    study["method"] = [{"name": "balanced_softmax"}]
    rows = runner.run(parse(study), tmp_path)
    assert {"test: head", "test: tail"} <= {row.split for row in rows}
    values = [row.value for row in rows if row.metric.startswith("classwise_ece: ")]
    assert np.isfinite(values).all()


def test_a_study_measures_shifted_test_images_after_calibrators_of_plain_ones(alone, tmp_path):
    study = {**SMALL, "seeds": [0], "metrics": ["accuracy", "nll", "ece"], "recipe": {"epochs": 3}}
    study["dataset"] = [{"name": "digits", "limit": 600}]
    runner.run(parse(study), tmp_path)
    before = (tmp_path / "rows.jsonl").read_text()
    # What is asked for later is measured with the trained network.
    chosen = parse({**study, "shifts": ["noise 1", "noise 5"]})
    assert parse(chosen.as_dict()) == chosen
    rows = runner.run(chosen, tmp_path)
    assert (tmp_path / "rows.jsonl").read_text().startswith(before)
    found = {(row.calibrator, row.split, row.metric): row.value for row in rows}
    (cell,) = chosen.cells()
    (folder,) = (tmp_path / "cells").iterdir()
    config = cell.config()
    splits, model, _ = built(config["dataset"], config["model"], config["method"], seed=0)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    noisy = predict(model, shifted(splits.test, "noise 5"))
    assert found["none", "shift: noise 5", "nll"] == metrics.nll(noisy)
    warm = TemperatureScaling.fit(Predictions.load(folder / "val.npz"))
    assert found["temperature", "shift: noise 5", "ece"] == metrics.ece(noisy.map(warm))
    assert found["none", "shift: noise 5", "nll"] > found["none", "test", "nll"]
    assert {row.low for row in rows if row.split.startswith("shift")} == {None}
    assert "Under distribution shift" in study_page(tmp_path).read_text()
