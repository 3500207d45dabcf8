"""A new metric is one function with its resampling form, and one entry: everything knows it."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from calibrant import audit, methods, metrics
from calibrant.cli import main
from calibrant.data import SYNTHETIC, load
from calibrant.metrics import METRICS, Metric
from calibrant.metrics.metric import at_own_weights
from calibrant.metrics.scores import mean_statistic
from calibrant.models import build
from calibrant.report.comparison import compare
from calibrant.training import Recipe, train


def doubt(predictions):
    """One minus the mean confidence: here, more is said to be better."""
    return at_own_weights(predictions, doubt_statistic(predictions))


def doubt_statistic(predictions):
    """Prepare `doubt` for resampling."""
    return mean_statistic(predictions, of_example=lambda p: 1 - np.asarray(p.confidence))


@pytest.fixture(autouse=True)
def _one_line(monkeypatch):
    entry = Metric(doubt, doubt_statistic, "doubt", "one minus mean confidence", best="higher")
    monkeypatch.setitem(METRICS, "doubt", entry)


def test_the_command_line_lists_audits_and_compares_it(tmp_path, capsys):
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


def test_its_interval_is_resampled_by_weights_and_stays_in_its_range():
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
    timid, bold = (line.readings["doubt"].mark for line in compare(rows).lines)
    assert (timid, bold) == ("best", "worse")
