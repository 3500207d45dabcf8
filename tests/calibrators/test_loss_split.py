"""The split of a proper score into calibration and refinement."""

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, BetaCalibration, split_loss
from calibrant.calibrators.selection import fold_of


def tempered(n, temperature, *, classes=3, seed=0):
    """Logits that are right once divided by the temperature."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, classes))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return Predictions(temperature * logits, labels)


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_equals_a_loop_over_folds_and_examples(score):
    p = tempered(200, 2.0, classes=2)
    fold, measure = fold_of(p, folds=4, seed=3), getattr(metrics, score)
    fitted = [BetaCalibration.fit(p.take(fold != number)) for number in range(4)]
    after = [measure(p.take([row]).map(fitted[fold[row]])) for row in range(200)]
    found = split_loss(p, score=score, calibrator="beta", folds=4, seed=3, resamples=50)
    assert found.total == pytest.approx(measure(p))
    assert found.refinement == pytest.approx(np.mean(after), rel=1e-9)
    assert found.calibration == pytest.approx(found.total - found.refinement)
    assert found.gain.low < found.calibration < found.gain.high


def test_a_known_temperature_gives_the_known_parts():
    p, truth = tempered(20_000, 3.0), tempered(20_000, 1.0)
    found = split_loss(p, resamples=100)
    # One parameter, fitted to 16,000 examples, costs about 1 / (2 n) of NLL.
    assert found.refinement == pytest.approx(metrics.nll(truth), abs=2e-4)
    assert found.calibration == pytest.approx(metrics.nll(p) - metrics.nll(truth), abs=2e-4)
    assert "temperature lowers the NLL by" in str(found)


def test_calibrated_predictions_have_no_calibration_part():
    found = split_loss(tempered(5000, 1.0), resamples=200)
    assert found.gain.low <= 0 <= found.gain.high
    assert abs(found.calibration) < 1e-3
    assert "does not significantly lower" in str(found)
    assert "<table>" in found._repr_html_()
    # Too many parameters for the examples: worse than none.
    few = split_loss(tempered(60, 1.0, seed=1), calibrator="histogram", resamples=200)
    assert few.calibration < 0


def test_a_probability_of_0_of_the_label_counts_as_in_a_fit():
    p = tempered(500, 1.0)
    probs = p.probs.numpy().copy()
    probs[:5, 0], probs[:5, 1:] = 0.0, 0.5
    zeros = Predictions.from_probs(probs, np.where(np.arange(500) < 2, 0, p.labels))
    assert metrics.nll(zeros) == np.inf
    found = split_loss(zeros, resamples=50)
    expected = metrics.nll(zeros.map(CALIBRATORS["identity"].fit(zeros)))
    assert np.isfinite(expected)
    assert found.total == pytest.approx(expected)
    assert "nan" not in str(found)


def test_weights_count_and_wrong_names_are_refused():
    p = tempered(400, 2.0)
    counts = np.random.default_rng(0).integers(1, 4, 400)
    found = split_loss(p.reweighted(counts), resamples=50)
    assert found.total == pytest.approx(metrics.nll(p.take(np.repeat(np.arange(400), counts))))
    assert found.calibration > 0.05
    with pytest.raises(ValueError, match="did you mean brier"):
        split_loss(p, score="brie")
    with pytest.raises(ValueError, match="no calibrator"):
        split_loss(p, calibrator="temprature")
