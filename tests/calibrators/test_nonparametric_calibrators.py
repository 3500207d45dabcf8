"""Isotonic regression and histogram binning, against scikit-learn and a loop over bins."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression as Reference

from calibrant import Predictions
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.isotonic import (
    IsotonicRegression,
    OrderPreservingIsotonic,
    interpolated,
    pooled,
)
from calibrant.calibrators.one_versus_rest import log_odds


def drawn(n, k, *, seed=0, sharper=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Predictions(sharper * logits, labels)


def reference_of(scores, own, weights=None):
    return Reference(out_of_bounds="clip").fit(scores, own.astype(float), sample_weight=weights)


@pytest.mark.parametrize("ties", [False, True])
def test_pooling_agrees_with_sklearn_at_and_between_the_points(ties):
    generator = np.random.default_rng(0)
    scores = generator.standard_normal(500)
    if ties:
        scores = scores.round(1)
    own = generator.random(500) < 1 / (1 + np.exp(-2 * scores))
    weights = generator.random(500)
    found = pooled(scores, own, weights)
    at = np.concatenate([scores, np.linspace(-6, 6, 400)])
    mine = interpolated(*(torch.from_numpy(each)[None] for each in (at, *found)))[0]
    np.testing.assert_allclose(mine, reference_of(scores, own, weights).predict(at), atol=1e-9)


def test_pooling_is_monotone_and_does_nothing_to_its_own_answer():
    scores = np.arange(6.0)
    # By hand: 0 | 1 0 -> 1/2 1/2 | 1 1 0 -> 2/3.
    found = pooled(scores, np.array([0, 1, 0, 1, 1, 0], dtype=bool), np.ones(6))
    assert found.knots.tolist() == [0, 1, 2, 3, 5]
    assert found.values == pytest.approx([0, 1 / 2, 1 / 2, 2 / 3, 2 / 3])
    # Each score 60 times, true as often as the answer says.
    answer = np.interp(scores, *found)
    own = np.arange(60) < np.rint(60 * answer)[:, None]
    again = pooled(np.repeat(scores, 60), own.ravel(), np.ones(360))
    np.testing.assert_allclose(np.interp(scores, *again), answer)


def test_rows_without_weight_leave_no_knot():
    found = pooled(np.array([0.0, 1.0, 9.0]), np.array([0, 1, 1], bool), np.array([1.0, 1.0, 0.0]))
    assert found.knots.tolist() == [0, 1]


def test_two_classes_are_sklearns_with_a_pseudo_example():
    examples = drawn(2000, 2)
    odds = (examples.logits[:, 1] - examples.logits[:, 0]).numpy()
    test = 4 * torch.randn(300, 2, dtype=torch.float64)
    expected = reference_of(odds, examples.labels.numpy() == 1).predict(test[:, 1] - test[:, 0])
    found = IsotonicRegression.fit(examples)(test).exp()[:, 1]
    np.testing.assert_allclose(found, (2000 * expected + 0.5) / 2001, atol=1e-9)


def test_more_classes_are_sklearns_divided_by_their_sum():
    examples, test = drawn(3000, 4), drawn(300, 4, seed=1).logits
    fitting, applied = log_odds(examples.logits).numpy(), log_odds(test).numpy()
    columns = []
    for j in range(4):
        reference = reference_of(fitting[:, j], examples.labels.numpy() == j)
        columns.append((3000 * reference.predict(applied[:, j]) + 0.25) / 3001)
    expected = np.stack(columns, 1)
    expected /= expected.sum(1, keepdims=True)
    found = IsotonicRegression.fit(examples)(test).exp()
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_one_function_for_all_classes_is_sklearns_on_all_pairs():
    examples, test = drawn(1500, 5), drawn(300, 5, seed=1).logits
    own = examples.labels.numpy()[:, None] == np.arange(5)
    reference = reference_of(log_odds(examples.logits).numpy().ravel(), own.ravel())
    level = reference.predict(log_odds(test).numpy().ravel()).reshape(-1, 5)
    expected = 1500 * level + 1 / 5 + test.softmax(1).numpy()
    expected /= expected.sum(1, keepdims=True)
    found = OrderPreservingIsotonic.fit(examples)(test).exp()
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_one_function_for_all_classes_preserves_their_order_and_needs_not_all_of_them():
    examples = drawn(1500, 5)
    log_probs = OrderPreservingIsotonic.fit(examples)(examples.logits)
    sorted_by_logits = log_probs.gather(1, examples.logits.argsort(1))
    assert (sorted_by_logits.diff(dim=1) > 0).all()
    without = examples.take((examples.labels != 2).nonzero()[:, 0])
    with pytest.warns(UserWarning, match="1 of 5 classes never occur"):
        found = OrderPreservingIsotonic.fit(without)
    assert found(without.logits).isfinite().all()


def test_few_examples_of_a_class_are_warned_about():
    with pytest.warns(UserWarning, match="5 of 5 classes have fewer than 50 examples"):
        IsotonicRegression.fit(drawn(100, 5))
    with pytest.warns(UserWarning, match="isotonic regression overfits 40 examples"):
        OrderPreservingIsotonic.fit(drawn(40, 5))


def test_equal_logits_give_the_frequency():
    labels = (torch.arange(400) % 4 > 0).long()
    examples = Predictions(torch.zeros(400, 2), labels)
    assert IsotonicRegression.fit(examples).knots.tolist() == [0.0]
    for kind in (IsotonicRegression, HistogramBinning):
        assert kind.fit(examples)([[0.0, 0.0]]).exp()[0, 1] == pytest.approx((300 + 0.5) / 401)


def test_gradients_are_nonzero_between_the_knots_and_zero_on_blocks():
    numbers = {"knots": [-1.0, 1.0, 3.0], "values": [0.2, 0.6, 0.6]}
    found = IsotonicRegression(
        classes=2,
        offsets=torch.tensor([0, 3]),
        **{name: torch.tensor(each, dtype=torch.float64) for name, each in numbers.items()},
    )
    logits = torch.tensor([[0, -4], [0, 0], [0, 2], [0, 9.0]], dtype=torch.float64)
    logits.requires_grad_(True)
    probs = found(logits).exp()[:, 1]
    assert probs.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.6])
    (gradient,) = torch.autograd.grad(probs.sum(), logits)
    # An increase of 0.4 over 2 in the log-odds.
    torch.testing.assert_close(gradient[:, 1], torch.tensor([0, 0.2, 0, 0], dtype=torch.float64))


def naive(scores, own, new, *, bins, classes):
    """Equal-mass bins by counting: rank r of n is in bin floor(r * bins / n)."""
    n = len(scores)
    cuts = [math.ceil(n * b / bins) for b in range(bins + 1)]
    ordered = np.sort(scores)
    edges = [(ordered[cut - 1] + ordered[cut]) / 2 for cut in cuts[1:-1]]
    answers = []
    for score in new:
        low = max([edge for edge in edges if edge < score], default=-np.inf)
        high = min([edge for edge in edges if edge >= score], default=np.inf)
        inside = (scores > low) & (scores <= high)
        answers.append((own[inside].sum() + 1 / classes) / (inside.sum() + 1))
    return np.array(answers)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_two_classes_equal_a_loop(bins):
    examples, test = drawn(601, 2), drawn(80, 2, seed=1).logits
    odds = (examples.logits[:, 1] - examples.logits[:, 0]).numpy()
    new = (test[:, 1] - test[:, 0]).numpy()
    expected = naive(odds, examples.labels.numpy() == 1, new, bins=bins, classes=2)
    found = HistogramBinning.fit(examples, bins=bins)(test).exp()[:, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_more_classes_equal_a_loop_divided_by_the_sum():
    examples, test = drawn(600, 3), drawn(80, 3, seed=1).logits
    odds, new = log_odds(examples.logits).numpy(), log_odds(test).numpy()
    labels = examples.labels.numpy()
    columns = [naive(odds[:, j], labels == j, new[:, j], bins=6, classes=3) for j in range(3)]
    expected = np.stack(columns, 1) / np.sum(columns, 0)[:, None]
    found = HistogramBinning.fit(examples, bins=6)(test).exp()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_equal_width_bins_are_counted_and_an_empty_one_has_its_centre():
    probs = torch.tensor([0.05, 0.1, 0.3, 0.3, 0.9], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 0, 1])
    examples = Predictions.from_binary(probs, labels, kind="probs")
    found = HistogramBinning.fit(examples, bins=4, equal_mass=False)
    # (hits + 1/2) / (examples + 1) in each quarter; the third has none.
    assert found.values[0].tolist() == pytest.approx([1.5 / 3, 0.5 / 3, 0.625, 1.5 / 2])
    assert found.edges[0].tolist() == pytest.approx([-math.log(3), 0, math.log(3)])


def test_equal_scores_stay_in_one_bin():
    odds = torch.tensor([-1.0] * 10 + [0.0] * 60 + [2.0] * 30)
    labels = torch.tensor([0, 1] * 50)
    found = HistogramBinning.fit(Predictions.from_binary(odds, labels, kind="logits"), bins=10)
    probs = found(torch.tensor([[0.0, -1.0], [0.0, 0.0], [0.0, 2.0]])).exp()[:, 1].tolist()
    assert probs == pytest.approx([5.5 / 11, 30.5 / 61, 15.5 / 31])


def test_equal_scores_at_the_top_have_a_bin_that_new_higher_scores_share():
    odds = torch.cat([torch.linspace(-3, 0, 50), torch.full((50,), 8.0)])
    labels = torch.cat([torch.zeros(50), torch.ones(50)]).long()
    found = HistogramBinning.fit(Predictions.from_binary(odds, labels, kind="logits"), bins=5)
    probs = found(torch.tensor([[0.0, 8.0], [0.0, 20.0]])).exp()[:, 1].tolist()
    assert probs == pytest.approx([50.5 / 51] * 2, rel=1e-5)


@pytest.mark.parametrize("bins", [0, -3, True, 1.5])
def test_bins_must_be_a_positive_integer(bins, as_a_user_runs_it):
    with pytest.raises(ValueError, match=f"bins must be an integer of at least 1, got {bins}"):
        HistogramBinning.fit(drawn(100, 2), bins=bins)


@pytest.mark.parametrize("kind", [IsotonicRegression, OrderPreservingIsotonic])
@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
def test_equal_votes_are_tied_although_their_log_odds_are_rounded(kind):
    generator = np.random.default_rng(0)
    votes = generator.multinomial(20, [0.5, 0.3, 0.15, 0.05], 2000) / 20
    labels = generator.integers(4, size=2000)
    for probs in (votes, votes.astype(np.float32)):
        fitted = kind.fit(Predictions.from_probs(probs, labels))
        # One block for each number of votes at most, with two ends: it was one for each rounding.
        functions = 4 if kind is IsotonicRegression else 1
        assert len(fitted.values.unique()) <= 21 * functions
        parts = [0, *fitted.offsets.tolist()[1:]] if functions > 1 else [0, len(fitted.knots)]
        for start, end in pairwise(parts):
            ends = fitted.values[start:end]
            steps = fitted.knots[start:end].diff()[ends.diff() > 0]
            assert float(steps.min()) > 0.01
