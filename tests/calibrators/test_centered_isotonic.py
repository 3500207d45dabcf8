"""Centered isotonic regression, against the blocks of scikit-learn's isotonic regression."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression as Reference

from calibrant import Predictions
from calibrant.calibrators import CenteredIsotonic, IsotonicRegression
from calibrant.calibrators.one_versus_rest import log_odds


def drawn(n, k, *, seed=0, digits=None):
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, k))
    labels = (logits + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(2 * logits if digits is None else (2 * logits).round(digits), labels)


def naive(odds, own, weights, new, share):
    """One point for each value of the fit, at the mean probability; linear in the log-odds."""
    fitted = Reference().fit(odds, own, sample_weight=weights).predict(odds)
    probs, total = 1 / (1 + np.exp(-odds)), weights.sum()
    levels = np.unique(fitted.round(12))
    at = [fitted.round(12) == level for level in levels]
    means = np.array([np.average(probs[block], weights=weights[block]) for block in at])
    return np.interp(new, np.log(means / (1 - means)), (total * levels + share) / (total + 1))


def test_two_classes_equal_the_written_out_definition():
    for digits in (None, 0):
        data, new = drawn(400, 2, digits=digits), np.linspace(-12, 12, 200)
        weights = np.random.default_rng(1).random(400)
        odds = (data.logits[:, 1] - data.logits[:, 0]).numpy()
        expected = naive(odds, data.labels.numpy() == 1, weights, new, 0.5)
        fitted = CenteredIsotonic.fit(data.reweighted(weights))
        found = fitted(np.stack([np.zeros(200), new], 1)).exp()[:, 1]
        np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=f"{digits} digits")


def test_more_classes_are_divided_by_their_sum():
    data, test = drawn(900, 3), drawn(200, 3, seed=1).logits
    odds, new = log_odds(data.logits).numpy(), log_odds(test).numpy()
    columns = [
        naive(odds[:, j], data.labels.numpy() == j, np.ones(900), new[:, j], 1 / 3)
        for j in range(3)
    ]
    expected = np.stack(columns, 1) / np.sum(columns, 0)[:, None]
    np.testing.assert_allclose(CenteredIsotonic.fit(data)(test).exp(), expected, atol=1e-9)


def test_different_probabilities_stay_different_inside_the_range_of_the_fit():
    data = drawn(500, 4)
    centered, steps = CenteredIsotonic.fit(data), IsotonicRegression.fit(data)
    # The same blocks and frequencies.
    assert torch.equal(centered.values.unique(), steps.values.unique())
    for start, end in pairwise(centered.offsets.tolist()):
        assert bool((centered.values[start:end].diff() > 0).all())
    odds = torch.linspace(*centered.knots[centered.offsets[:2] - torch.tensor([0, 1])], 300)
    pair = CenteredIsotonic(
        classes=2,
        knots=centered.knots[: centered.offsets[1]],
        values=centered.values[: centered.offsets[1]],
        offsets=centered.offsets[:2],
    )
    mapped = pair(torch.stack([torch.zeros(300), odds], 1).double())[:, 1]
    assert bool((mapped.diff() > 0).all())


def test_the_warning_about_few_examples_names_the_calibrator():
    with pytest.warns(UserWarning, match="^centered isotonic regression: 2 of 2 classes have"):
        CenteredIsotonic.fit(Predictions(np.eye(2)[np.arange(20) % 2], np.arange(20) % 2))


@pytest.mark.filterwarnings("ignore:centered isotonic regression")
def test_separable_tied_and_extreme_scores_have_finite_answers():
    labels = np.arange(20) % 2
    cases = {
        "separable": np.where(labels, 3.0, -3.0) + np.linspace(0, 1, 20),
        "constant": np.zeros(20),
        "beyond underflow": np.where(labels, 2e3, -2e3) + np.linspace(0, 1, 20),
        "rounds to 1": 40 + np.linspace(0, 1, 20) + labels,
    }
    probe = torch.tensor([[0.0, at] for at in (-1e4, -3.0, 0.0, 41.0, 1e4)]).double()
    for name, odds in cases.items():
        fitted = CenteredIsotonic.fit(Predictions(np.stack([0 * odds, odds], 1), labels))
        found = fitted(probe)
        assert bool(found.isfinite().all()), name
        assert bool((fitted.knots >= odds.min()).all() & (fitted.knots <= odds.max()).all()), name
        if name in ("separable", "rounds to 1"):
            # All of one block: 10 n / n and 0, with half a pseudo-example each.
            assert found[[0, -1], 1].exp().tolist() == pytest.approx([0.5 / 21, 20.5 / 21]), name
        if name == "rounds to 1":
            # There the log-odds are -log(1 - p).
            means = [-np.log(np.exp(-odds[labels == label]).mean()) for label in (0, 1)]
            assert fitted.knots.tolist() == pytest.approx(means)
