"""netcal: bins [a, b); two columns mean the probability of class 1, not of the top label."""

import warnings

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics import BinSums, adaptive_ece, ece, mce, per_class_ece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    netcal = pytest.importorskip("netcal.metrics")


def off_the_edges(values: np.ndarray) -> bool:
    """It moves 0 and 1 inwards by one rounding step, so only the inner edges can matter."""
    return not np.isin(values, np.arange(1, 15) / 15).any()


def test_ece_and_mce_are_the_same(real):
    assert off_the_edges(real.confidence)
    if real.predictions.classes == 2:
        assert off_the_edges(real.probs[:, 1])
        theirs = netcal.ECE(15).measure(real.probs, real.labels)
        assert per_class_ece(real.predictions)[1] == pytest.approx(theirs, abs=1e-6)
        # One column is a probability too: confidence against correctness is the top label.
        theirs = netcal.ECE(15).measure(real.confidence, real.correct)
        assert ece(real.predictions) == pytest.approx(theirs, abs=1e-6)
        return
    theirs = netcal.ECE(15).measure(real.probs, real.labels)
    assert ece(real.predictions) == pytest.approx(theirs, abs=1e-6)
    theirs = netcal.MCE(15).measure(real.probs, real.labels)
    assert mce(real.predictions) == pytest.approx(theirs, abs=1e-6)


def test_its_average_error_follows_from_our_sums(real):
    theirs = netcal.ACE(15).measure(real.confidence, real.correct)
    sums = BinSums.of(real.predictions)
    assert np.abs(sums.gap)[sums.count > 0].mean() == pytest.approx(theirs, abs=1e-6)


def test_equal_mass_bins_differ_by_where_a_quantile_is_interpolated(real):
    theirs = netcal.ECE(15, equal_intervals=False).measure(real.confidence, real.correct)
    # Its cut lies on an interpolated quantile and may move one example for each of 14 cuts.
    moved = 14 / len(real.predictions)
    assert adaptive_ece(real.predictions) == pytest.approx(theirs, abs=2 * moved)


def test_netcal_closes_bins_on_the_left():
    confidence, correct = np.array([0.5, 0.6]), np.array([0.0, 1.0])
    theirs = netcal.ECE(2).measure(confidence, correct)
    assert BinSums.of_confidence(confidence, correct, bins=2).ece == pytest.approx(0.45)
    assert theirs == pytest.approx(0.05)


def test_netcal_cannot_form_equal_mass_bins_of_ties():
    confidence, correct = np.repeat([0.7, 0.8, 0.9], 50), np.tile([1.0, 0.0], 75)
    predictions = Predictions.from_binary(confidence, correct, kind="probs")
    with pytest.warns(UserWarning, match="3 distinct confidence values"):
        ours = adaptive_ece(predictions)
    assert ours == pytest.approx((0.2 + 0.3 + 0.4) / 3)
    with pytest.raises(ValueError, match="smallest edge difference"):
        netcal.ECE(15, equal_intervals=False).measure(confidence, correct)


def test_netcal_refuses_many_classes_of_which_two_occur():
    probs, labels = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]), np.array([0, 1])
    assert ece(Predictions.from_probs(probs, labels), bins=1) == pytest.approx(0.35)
    with pytest.raises(RuntimeError, match="binary classification"):
        netcal.ECE(1).measure(probs, labels)
