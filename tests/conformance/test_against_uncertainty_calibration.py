"""uncertainty-calibration: the same bins as ours, equal width and equal mass, ties included."""

import warnings

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics import (
    adaptive_ece,
    classwise_ece,
    debiased_ece,
    debiased_rmsce,
    ece,
    rmsce,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    calibration = pytest.importorskip("calibration")
    utils = pytest.importorskip("calibration.utils")


def filled_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> list[np.ndarray]:
    """Its binned data over equal widths, without the empty bins that it cannot debias."""
    data = np.stack([confidence, correct], 1)
    binned = utils.fast_bin(data, utils.get_equal_prob_bins(confidence, bins))
    return [part for part in binned if len(part)]


def test_ece_is_the_same(real):
    theirs = calibration.get_ece(real.probs, real.labels)
    assert ece(real.predictions) == pytest.approx(theirs, abs=1e-6)


def test_ece_over_equal_mass_is_the_same_with_ties(real):
    theirs = calibration.get_ece_em(real.probs, real.labels)
    assert adaptive_ece(real.predictions) == pytest.approx(theirs, abs=1e-6)


def test_squared_error_is_the_same_with_and_without_debiasing(real):
    binned = filled_bins(real.confidence, real.correct)
    theirs = utils.plugin_ce(binned, power=2)
    assert rmsce(real.predictions) == pytest.approx(theirs, abs=1e-6)
    theirs = utils.unbiased_l2_ce(binned)
    assert debiased_rmsce(real.predictions) == pytest.approx(theirs, abs=1e-6)


def test_debiased_ece_is_the_limit_of_its_resampling(real, monkeypatch):
    binned = [part for part in filled_bins(real.confidence, real.correct) if len(part) > 1]
    kept = np.concatenate(binned)
    inside = np.isin(real.confidence, kept[:, 0])
    resamples = 20_000
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(0).normal)
    theirs = utils.normal_debiased_ce(binned, power=1, resamples=resamples)
    # The absolute value shrinks the spread of a gap, so this bounds that of the resampled error.
    variance = sum(part[:, 1].var() * len(part) for part in binned) / len(kept) ** 2
    noise = 5 * np.sqrt(variance / resamples)
    assert debiased_ece(real.predictions.take(inside)) == pytest.approx(theirs, abs=noise)


@pytest.mark.parametrize("adaptive", [False, True])
def test_class_wise_error_is_the_same_where_every_class_occurs(real, adaptive):
    occurs = np.bincount(real.labels, minlength=real.predictions.classes) > 0
    scheme = utils.get_equal_bins if adaptive else utils.get_equal_prob_bins
    per_class = [
        calibration.lower_bound_scaling_ce(
            real.probs[:, c],
            (real.labels == c).astype(int),
            p=1,
            debias=False,
            num_bins=15,
            binning_scheme=scheme,
        )
        for c in np.flatnonzero(occurs)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*excluded from the mean.*")
        ours = classwise_ece(real.predictions, adaptive=adaptive)
    assert ours == pytest.approx(np.mean(per_class), abs=1e-6)


def test_it_counts_a_class_that_never_occurs_and_we_leave_it_out():
    probs, labels = np.array([[0.7, 0.2, 0.1]] * 2), np.array([0, 1])
    theirs = calibration.lower_bound_scaling_ce(
        probs,
        labels,
        p=1,
        debias=False,
        num_bins=1,
        binning_scheme=utils.get_equal_prob_bins,
        mode="marginal",
    )
    with pytest.warns(UserWarning, match="class 2: no example"):
        ours = classwise_ece(Predictions.from_probs(probs, labels), bins=1)
    # Gaps of the classes: |0.7 - 0.5|, |0.2 - 0.5| and |0.1 - 0|.
    assert ours == pytest.approx((0.2 + 0.3) / 2)
    assert theirs == pytest.approx((0.2 + 0.3 + 0.1) / 3)


def test_it_cannot_debias_l1_over_an_empty_bin():
    confidence, correct = np.repeat([0.55, 0.95], 10), np.tile([1, 0], 10)
    predictions = Predictions.from_binary(confidence, correct, kind="probs")
    assert np.isfinite(debiased_ece(predictions))
    with pytest.raises(ValueError, match="Every bin must have at least 2 points"):
        calibration.get_ece(confidence, correct, debias=True)
