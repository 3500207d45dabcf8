"""Scaling-binning, against a loop over bins, and the calibration error that it measures."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import PlattScaling, ScalingBinning
from calibrant.calibrators.one_versus_rest import log_odds


def drawn(n, k, *, seed=0, digits=8):
    generator = np.random.default_rng(seed)
    logits = (2 * generator.normal(size=(n, k))).round(digits)
    labels = (logits / 2 + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits, labels)


def binary(odds, labels):
    return Predictions(np.stack([0 * odds, odds], 1), np.asarray(labels, dtype=int))


def naive(scores, new, bins):
    """Means of g over bins of equal counts, at new values of g; n is a multiple of bins."""
    ordered = np.sort(scores).reshape(bins, -1)
    edges = (ordered[:-1, -1] + ordered[1:, 0]) / 2
    means = (1 / (1 + np.exp(-ordered))).mean(1)
    return np.array([means[(edges < score).sum()] for score in new])


def test_it_equals_a_loop_over_the_bins_of_platt_scaling():
    for k, bins in ((2, 1), (2, 20), (3, 12)):
        data, test = drawn(600, k), drawn(100, k, seed=1).logits
        coefficients = PlattScaling.fit(data).coefficients.numpy()
        # Of class 1 only, of two.
        scores, new = (
            log_odds(each).numpy()[:, -len(coefficients) :] * coefficients[:, 0]
            + coefficients[:, 1]
            for each in (data.logits, test)
        )
        columns = [naive(*each, bins) for each in zip(scores.T, new.T, strict=True)]
        expected = np.stack(columns if k > 2 else [1 - columns[0], columns[0]], 1)
        expected /= expected.sum(1, keepdims=True)
        found = ScalingBinning.fit(data, bins=bins)(test).exp()
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=f"{k} classes, {bins} bins")


def test_the_mean_over_the_examples_is_the_frequency_of_the_class():
    # As for Platt scaling, whose intercept is at its optimum.
    for digits, weights in ((8, np.ones(500)), (0, np.arange(500) % 4)):
        data = drawn(500, 2, digits=digits).reweighted(weights)
        fitted = ScalingBinning.fit(data, bins=7)
        mean = np.average(fitted(data.logits).exp()[:, 1], weights=weights)
        assert mean == pytest.approx(np.average(data.labels == 1, weights=weights), abs=1e-9)
        assert len(fitted(data.logits).unique(dim=0)) <= 7


@pytest.mark.filterwarnings("ignore:no best fit for class 1")
def test_bins_of_equal_width_separable_tied_and_extreme_scores_have_finite_answers():
    labels = np.arange(20) % 2
    cases = {
        "separable": np.where(labels, 3.0, -3.0) + np.linspace(0, 1, 20),
        "tied": np.arange(20) % 3.0,
        "constant": np.zeros(20),
        "extreme": np.where(labels, 2e3, -2e3) + np.linspace(0, 1, 20),
    }
    for name, odds in cases.items():
        for equal_mass in (True, False):
            data = binary(odds, labels)
            found = ScalingBinning.fit(data, bins=9, equal_mass=equal_mass)
            probs = found(torch.tensor([[0.0, at] for at in (-1e4, 0.0, 1e4)]).double()).exp()
            assert bool(((probs > 0) & (probs < 1)).all()), name
            if name == "constant":
                assert probs[1].tolist() == pytest.approx([0.5, 0.5])


def test_a_fit_that_did_not_converge_warns_once():
    with pytest.warns(UserWarning, match="no best fit for class 1: separable") as given:
        found = ScalingBinning.fit(binary(np.arange(-10.0, 10.0), np.arange(20) > 9))
    assert len(given) == 1
    assert not found.origin.converged


# Two bins, below and above 0, with 0.3 and 0.6.
STEPS = ScalingBinning(
    classes=2,
    coefficients=torch.tensor([[2.0, 0.0]]).double(),
    edges=torch.zeros(1, 1).double(),
    values=torch.tensor([[0.3, 0.6]]).double(),
)


def test_the_calibration_error_by_hand():
    # 40 examples with frequency 3/4, and 60 with 5/6; as copies and as weights.
    copied = binary(
        np.tile(np.repeat([-1.0, 1.0], [4, 6]), 10), [1, 1, 1, 0, 1, 1, 1, 1, 1, 0] * 10
    )
    gaps = 0.4 * 0.45**2 + 0.6 * (5 / 6 - 0.6) ** 2
    bias = 0.4 * (3 / 4 * 1 / 4) / 39 + 0.6 * (5 / 6 * 1 / 6) / 59
    found = STEPS.calibration_error(copied, level=0.9)
    assert float(found.estimate) == pytest.approx(math.sqrt(gaps - bias))
    noise = math.sqrt(2 / (4 * 100)) + math.sqrt(2 * math.log(10) / 100)
    assert float(found.bound) == pytest.approx(math.sqrt(gaps) + noise)
    weighted = binary(np.tile([-1.0, -1.0, 1.0], 40), [1, 0, 1] * 40)
    weighted = weighted.reweighted([1.0, 3.0, 6.0] * 40)
    found = STEPS.calibration_error(weighted)
    gaps = 0.4 * 0.05**2 + 0.6 * 0.4**2
    squares = [(0.1**2 + 0.3**2) / 0.4 / 40, 0.6 / 40]
    noise = math.sqrt(sum(squares) / 4) + math.sqrt(2 * math.log(20) * 0.6 / 40)
    assert float(found.bound) == pytest.approx(math.sqrt(gaps) + noise)
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 1"):
        STEPS.calibration_error(copied, level=1.0)


def test_the_bound_is_at_most_one():
    # Without the limit it is 1.3.
    found = STEPS.calibration_error(binary(np.repeat([-1.0, 1.0], 5), np.arange(10) % 2))
    assert float(found.bound) == 1


def test_the_estimate_is_unbiased_and_the_bound_is_rarely_exceeded():
    generator = np.random.default_rng(0)
    odds = np.repeat([-1.0, 1.0], [30, 70])
    true = np.where(odds < 0, 0.5, 0.65)
    squared = 0.3 * 0.2**2 + 0.7 * 0.05**2
    found = [
        STEPS.calibration_error(binary(odds, generator.random(100) < true)) for _ in range(150)
    ]
    # Rarely cut off at 0, so unbiased up to that.
    mean = np.mean([float(each.estimate) ** 2 for each in found])
    assert mean == pytest.approx(squared, abs=0.003)
    assert min(float(each.bound) for each in found) > math.sqrt(squared)


def test_the_calibration_error_of_many_classes_is_that_of_each_function():
    data = drawn(900, 3)
    fitted = ScalingBinning.fit(data, bins=5)
    found = fitted.calibration_error(data)
    odds = log_odds(data.logits)
    for j in range(3):
        alone = ScalingBinning(
            classes=2,
            coefficients=fitted.coefficients[j : j + 1],
            edges=fitted.edges[j : j + 1],
            values=fitted.values[j : j + 1],
        ).calibration_error(binary(odds[:, j].numpy(), data.labels.numpy() == j))
        torch.testing.assert_close((found.estimate[j], found.bound[j]), (alone[0][0], alone[1][0]))
