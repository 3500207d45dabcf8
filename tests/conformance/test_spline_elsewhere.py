"""Splines of ml-insights, the library of the author of spline calibration: as good on new data."""

import numpy as np
import pytest
from scipy.special import expit

from calibrant import Predictions, metrics
from calibrant.calibrators import SplineCalibration

mli = pytest.importorskip("ml_insights")
# Of older releases of what it uses.
pytestmark = pytest.mark.filterwarnings("ignore")

TRUTHS = {
    "sigmoid": lambda x: 2 * np.tanh(x),
    "shifted": lambda x: 0.5 * x - 1,
    "steep ends": lambda x: 0.3 * x + 0.05 * x**3,
}


def drawn(n, truth, seed):
    generator = np.random.default_rng(seed)
    odds = 2 * generator.standard_normal(n)
    labels = (generator.random(n) < expit(truth(odds))).astype(int)
    return Predictions.from_binary(odds, labels, kind="logits"), expit(odds), labels


@pytest.mark.parametrize("name", TRUTHS)
def test_new_examples_have_as_low_a_loss_and_similar_probabilities(name):
    for n, tolerance in ((300, 0.25), (5000, 0.1)):
        data, probs, labels = drawn(n, TRUTHS[name], 0)
        test, new, _ = drawn(10_000, TRUTHS[name], 1)
        theirs = mli.SplineCalib()
        theirs.fit(probs, labels)
        found = np.clip(theirs.calibrate(new), 1e-12, 1 - 1e-12)
        reference = Predictions.from_binary(found, test.labels, kind="probs")
        ours = test.map(SplineCalibration.fit(data))
        assert metrics.nll(ours) <= metrics.nll(reference) + 0.002, n
        difference = np.abs(ours.probs[:, 1].numpy() - found)
        assert np.quantile(difference, 0.95) < tolerance, n
