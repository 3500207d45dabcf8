"""scikit-learn: the Brier score, the log loss and the points of a reliability diagram."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics import BinSums, brier, class_sums, nll

metrics = pytest.importorskip("sklearn.metrics")
calibration = pytest.importorskip("sklearn.calibration")

# It raises probabilities below this to it before taking logarithms.
CLIP = np.finfo(np.float64).eps


def test_brier_score_is_the_same(real):
    theirs = metrics.brier_score_loss(
        real.labels,
        real.probs,
        labels=np.arange(real.predictions.classes),
        scale_by_half=False,
    )
    assert brier(real.predictions) == pytest.approx(theirs, abs=1e-9)


def test_log_loss_is_the_same_where_it_does_not_clip(real):
    inside = real.predictions.label_probs.numpy() > CLIP
    theirs = metrics.log_loss(
        real.labels[inside], real.probs[inside], labels=np.arange(real.predictions.classes)
    )
    assert nll(real.predictions.take(inside)) == pytest.approx(theirs, abs=1e-9)


def test_reliability_points_of_the_top_label_are_the_same(real):
    sums = BinSums.of(real.predictions)
    accuracy, confidence = calibration.calibration_curve(real.correct, real.confidence, n_bins=15)
    filled = sums.count > 0
    assert sums.correct[filled] / sums.count[filled] == pytest.approx(accuracy, abs=1e-9)
    assert sums.confidence[filled] / sums.count[filled] == pytest.approx(confidence, abs=1e-9)


def test_reliability_points_of_every_class_are_the_same(real):
    sums = class_sums(real.predictions)
    for c in range(real.predictions.classes):
        one = real.labels == c
        if not one.any():
            continue
        frequency, forecast = calibration.calibration_curve(one, real.probs[:, c], n_bins=15)
        filled = sums.count[c] > 0
        count = sums.count[c, filled]
        assert sums.correct[c, filled] / count == pytest.approx(frequency, abs=1e-9)
        assert sums.confidence[c, filled] / count == pytest.approx(forecast, abs=1e-9)


def test_two_class_brier_score_is_half_of_ours():
    scores, labels = np.array([0.9, 0.2, 0.6]), np.array([1, 0, 0])
    predictions = Predictions.from_binary(scores, labels, kind="probs")
    # (0.01 + 0.04 + 0.36) / 3 of one class, and as much again of the other.
    assert metrics.brier_score_loss(labels, scores) == pytest.approx(0.41 / 3)
    assert brier(predictions) == pytest.approx(2 * 0.41 / 3)


def test_log_loss_of_an_impossible_label_is_infinite_only_here():
    probs, labels = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0])
    theirs = metrics.log_loss(labels, probs)
    assert theirs == pytest.approx((-np.log(CLIP) + np.log(2)) / 2)
    assert nll(Predictions.from_probs(probs, labels)) == np.inf
