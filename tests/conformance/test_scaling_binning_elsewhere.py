"""uncertainty-calibration: the same Platt scaling and the same means of its bins."""

import warnings

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import ScalingBinning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    calibration = pytest.importorskip("calibration")


def drawn(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(n, k))
    labels = (logits / 2 + generator.gumbel(size=(n, k))).argmax(1)
    probs = np.exp(logits)
    return probs / probs.sum(1, keepdims=True), labels


@pytest.mark.parametrize("bins", [5, 20])
def test_the_values_of_two_classes_are_the_same(bins):
    probs, labels = drawn(1000, 2)
    theirs = calibration.PlattBinnerCalibrator(1000, bins)
    theirs.train_calibration(probs[:, 1], labels)
    ours = ScalingBinning.fit(Predictions.from_probs(probs, labels), bins=bins)
    # Edges differ: halfway between probabilities, not between log-odds.
    np.testing.assert_allclose(
        ours(np.log(probs)).exp()[:, 1], theirs.calibrate(probs[:, 1]), atol=1e-4
    )


def test_the_values_of_more_classes_are_the_same_divided_by_their_sum():
    probs, labels = drawn(1200, 3)
    theirs = calibration.PlattBinnerMarginalCalibrator(1200, 10)
    theirs.train_calibration(probs, labels)
    expected = theirs.calibrate(probs)
    ours = ScalingBinning.fit(Predictions.from_probs(probs, labels), bins=10)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(ours(np.log(probs)).exp(), expected, atol=1e-4)
