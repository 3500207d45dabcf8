"""Histogram binning against a loop over bins."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.one_versus_rest import log_odds


def drawn(n, k, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    return Predictions(logits, labels)


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


def test_equal_logits_give_the_frequency():
    labels = (torch.arange(400) % 4 > 0).long()
    found = HistogramBinning.fit(Predictions(torch.zeros(400, 2), labels))
    assert found([[0.0, 0.0]]).exp()[0, 1] == pytest.approx((300 + 0.5) / 401)


@pytest.mark.parametrize("bins", [0, -3, True, 1.5])
def test_bins_must_be_a_positive_integer(bins, as_a_user_runs_it):
    with pytest.raises(ValueError, match=f"bins must be an integer of at least 1, got {bins}"):
        HistogramBinning.fit(drawn(100, 2), bins=bins)
