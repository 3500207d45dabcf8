"""Venn-Abers calibration, against isotonic regressions refitted for every new example."""

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from calibrant import Predictions
from calibrant.calibrators import VennAbers
from calibrant.calibrators.one_versus_rest import log_odds


def binary(odds, labels, weights=None):
    data = Predictions(np.stack([np.zeros(len(odds)), odds], 1), labels.astype(int))
    return data if weights is None else data.reweighted(weights)


def drawn(n, *, seed=0, digits=8):
    generator = np.random.default_rng(seed)
    odds = generator.normal(size=n).round(digits)
    return odds, generator.random(n) < 1 / (1 + np.exp(-2 * odds))


def refitted(odds, own, weights, new):
    """P0 and p1 by definition: two regressions for each new score."""
    found = [
        IsotonicRegression()
        .fit([*odds, x], [*own, label], sample_weight=[*weights, 1.0])
        .predict([x])[0]
        for label in (0.0, 1.0)
        for x in new
    ]
    return np.reshape(found, (2, -1))


def ends_of(fitted, new):
    """P0 and p1 of class 1."""
    low, high = fitted.interval(np.stack([np.zeros(len(new)), new], 1))
    return np.stack([low[:, 1], high[:, 1]])


def test_both_ends_are_those_of_refitted_regressions():
    generator = np.random.default_rng(1)
    cases = {
        "continuous": (*drawn(60), np.ones(60)),
        "tied": (*drawn(60, seed=1, digits=0), np.ones(60)),
        "weights": (*drawn(60, seed=2, digits=1), generator.random(60) * 3),
        "copies": (*drawn(60, seed=3, digits=1), generator.integers(0, 3, 60).astype(float)),
        "two examples": (np.array([0.3, -0.2]), np.array([1, 0]), np.ones(2)),
        "one score": (np.full(9, 1.5), np.arange(9) < 3, np.ones(9)),
        "separable": (np.arange(-4.0, 4.0), np.arange(8) > 3, np.ones(8)),
        "reversed": (np.arange(-4.0, 4.0), np.arange(8) < 4, np.ones(8)),
    }
    for name, (odds, own, weights) in cases.items():
        new = np.concatenate([odds[:30], generator.normal(size=15) * 2, [-40, 40]])
        expected = refitted(odds, own, weights, new)
        fitted = VennAbers.fit(binary(odds, own, weights))
        np.testing.assert_allclose(ends_of(fitted, new), expected, atol=1e-9, err_msg=name)
        merged = expected[1] / (1 - expected[0] + expected[1])
        found = fitted(np.stack([np.zeros(len(new)), new], 1)).exp()
        np.testing.assert_allclose(found[:, 1], merged, atol=1e-9, err_msg=name)
        assert bool(((found > 0) & (found < 1)).all()), name


def test_more_classes_are_one_versus_rest_and_divided_by_their_sum():
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(150, 3))
    labels = (logits / 2 + generator.gumbel(size=(150, 3))).argmax(1)
    fitted, new = VennAbers.fit(Predictions(logits, labels)), torch.randn(20, 3).double()
    low, high = fitted.interval(new)
    for j in range(3):
        odds = log_odds(torch.from_numpy(logits))[:, j].numpy()
        expected = refitted(odds, labels == j, np.ones(150), log_odds(new)[:, j].numpy())
        np.testing.assert_allclose(np.stack([low[:, j], high[:, j]]), expected, atol=1e-9)
    merged = high / (1 - low + high)
    torch.testing.assert_close(fitted(new).exp(), merged / merged.sum(1, keepdim=True))


def test_the_cross_form_merges_parts_of_the_sorted_examples_by_geometric_means():
    (odds, own), new = drawn(90), np.linspace(-3, 3, 50)
    order = odds.argsort()
    parts = [order[at::3] for at in range(3)]
    ends = np.stack([ends_of(VennAbers.fit(binary(odds[i], own[i])), new) for i in parts])
    against, towards = np.exp(np.log(1 - ends[:, 0]).mean(0)), np.exp(np.log(ends[:, 1]).mean(0))
    fitted = VennAbers.fit(binary(odds, own), folds=3)
    found = fitted(np.stack([np.zeros(50), new], 1)).exp()[:, 1].numpy()
    np.testing.assert_allclose(found, towards / (against + towards), atol=1e-9)
    # The ends are in order, with the merged value between them.
    low, high = ends_of(fitted, new)
    np.testing.assert_allclose(low, np.minimum(1 - against, towards), atol=1e-9)
    assert ((low <= found + 1e-12) & (found <= high + 1e-12)).all()
    counts = np.random.default_rng(0).integers(0, 4, 90)
    copied = np.repeat(np.arange(90), counts)
    heavy = VennAbers.fit(binary(odds, own, counts), folds=3)
    again = VennAbers.fit(binary(odds[copied], own[copied]), folds=3)
    np.testing.assert_allclose(ends_of(heavy, new), ends_of(again, new), atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
def test_equal_votes_are_tied_although_their_log_odds_are_rounded():
    votes = np.random.default_rng(0).binomial(20, 0.4, 2000) / 20
    labels = np.random.default_rng(1).random(2000) < votes
    levels = np.arange(4, 13) / 20
    expected = refitted(votes, labels, np.ones(2000), levels)
    for dtype in (np.float64, np.float32):
        probs = np.stack([1 - votes, votes], 1).astype(dtype)
        fitted = VennAbers.fit(Predictions.from_probs(probs, labels.astype(int)))
        # Each number of votes, and the gaps between.
        assert len(fitted.low) <= 2 * len(np.unique(votes)) + 1
        given = levels.astype(dtype)
        found = ends_of(fitted, np.log(given) - np.log(1 - given))
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(dtype))


def test_the_interval_is_wide_where_examples_are_few_and_mirrored_for_two_classes():
    widths = []
    for n in (100, 2000):
        fitted = VennAbers.fit(binary(*drawn(n)))
        low, high = fitted.interval(np.stack([np.zeros(99), np.linspace(-1, 1, 99)], 1))
        torch.testing.assert_close(low[:, 0], 1 - high[:, 1])
        torch.testing.assert_close(high[:, 0], 1 - low[:, 1])
        widths.append(float((high - low).mean()))
    assert widths[1] < widths[0] / 3


def test_the_interval_of_masked_classes_is_zero_and_of_the_only_class_one():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 3))
    labels = (logits + generator.gumbel(size=(300, 3))).argmax(1)
    fitted = VennAbers.fit(Predictions(logits, labels))
    given = torch.tensor([[0.5, -torch.inf, 0.1], [-torch.inf, -torch.inf, 3.0]])
    low, high = fitted.interval(given)
    assert (low[0, 1], high[0, 1]) == (0, 0)
    assert bool((low[0, [0, 2]] < high[0, [0, 2]]).all())
    assert low[1].tolist() == high[1].tolist() == [0, 0, 1]
    # As if the other class did not exist.
    odds = float(given[0, 0] - given[0, 2])
    both = fitted.interval(torch.tensor([[odds, 0.0, -100.0]]))
    torch.testing.assert_close((low[0, 0], high[0, 0]), (both[0][0, 0], both[1][0, 0]))
    with pytest.raises(ValueError, match="was fitted on 3 classes, got 2 classes"):
        fitted.interval([[0.0, 1.0]])


def test_no_end_is_minus_zero():
    for folds in (1, 3):
        fitted = VennAbers.fit(binary(*drawn(200)), folds=folds)
        assert float(fitted.low.min()) == 0
        assert not bool(fitted.low.signbit().any())


@pytest.mark.parametrize("folds", [0, True, 2.0])
def test_folds_must_be_a_positive_integer(folds, as_a_user_runs_it):
    with pytest.raises(ValueError, match=f"folds must be an integer of at least 1, got {folds}"):
        VennAbers.fit(binary(*drawn(50)), folds=folds)
