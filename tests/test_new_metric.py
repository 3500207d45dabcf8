"""A new metric is one file in `metrics` and one entry in `METRICS`: everything knows it."""

import json
import sys
from functools import partial
from importlib import import_module

import pytest
import torch

from calibrant import audit, methods, metrics
from calibrant.cli import main
from calibrant.data import SYNTHETIC, load
from calibrant.metrics import METRICS
from calibrant.models import build
from calibrant.report.comparison import compare
from calibrant.training import Recipe, train

FILE = """
import numpy as np

from calibrant.metrics.metric import Metric, Statistic, at_own_weights
from calibrant.metrics.scores import mean_statistic
from calibrant.predictions import Predictions


def doubt(predictions: Predictions) -> float:
    return at_own_weights(predictions, doubt_statistic(predictions))


def doubt_statistic(predictions: Predictions) -> Statistic:
    return mean_statistic(predictions, of_example=lambda p: 1 - np.asarray(p.confidence))


# Higher is said to be better, to test that direction.
DOUBT = Metric(doubt, doubt_statistic, "doubt", "one minus mean confidence", best="higher")
"""


@pytest.fixture(autouse=True)
def doubt(monkeypatch, tmp_path_factory):
    """A file in the folder of metrics, and one entry; the new function."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "doubts.py").write_text(FILE)
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(folder)])
    added = import_module("calibrant.metrics.doubts")
    monkeypatch.setitem(METRICS, "doubt", added.DOUBT)
    yield added.doubt
    del sys.modules["calibrant.metrics.doubts"]


def test_the_command_line_lists_audits_and_compares_it(tmp_path, capsys, doubt):
    p = SYNTHETIC["overconfident"].sample(300, seed=0).predictions
    p.save(tmp_path / "a.npz")
    p.map(lambda logits: logits / 3).save(tmp_path / "b.npz")
    assert main(["list", "metrics"]) == 0
    assert "One minus mean confidence" in capsys.readouterr().out
    files = [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    assert main(["compare", *files, "--metric", "doubt", "--resamples", "60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["doubt"]["higher"] == "B"
    found = audit(p, resamples=20)
    assert found.metrics["doubt"].value == pytest.approx(doubt(p))
    assert "doubt" in found.to_html()


def test_its_interval_is_resampled_by_weights_and_stays_in_its_range(doubt):
    p = SYNTHETIC["overconfident"].sample(300, seed=0).predictions
    fast = metrics.interval(doubt, p, resamples=50)
    slow = metrics.interval(lambda q: doubt(q), p, resamples=50)
    assert (fast.low, fast.high) == pytest.approx((slow.low, slow.high), rel=1e-6)
    assert metrics.interval(partial(doubt), p, resamples=50) == fast


def test_early_stopping_keeps_the_epoch_with_the_highest_value():
    splits = load("blobs", 0, limit=200)
    torch.manual_seed(0)
    model = build("mlp", shape=splits.shape, classes=splits.classes)
    recipe = Recipe(epochs=5, batch=64, lr=0.05, stop_on="doubt")
    trained = train(model, methods.build("cross_entropy", classes=splits.classes), splits, recipe)
    values = [row["val_doubt"] for row in trained.history]
    assert trained.record["best_epoch"] == values.index(max(values)) != len(values) - 1


def test_a_report_marks_the_highest_value_as_best():
    rows = [
        {"split": "test", "metric": "doubt", "method": method, "calibrator": "none", "seed": seed}
        | {"value": value, "low": value - 0.01, "high": value + 0.01}
        for method, values in {"timid": (0.6, 0.61, 0.59), "bold": (0.1, 0.12, 0.13)}.items()
        for seed, value in enumerate(values)
    ]
    timid, bold = (line.readings["doubt"].mark for line in compare(rows).combinations)
    assert (timid, bold) == ("best", "worse")
