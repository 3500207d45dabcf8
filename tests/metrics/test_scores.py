"""Scores against scikit-learn, loops and hand-worked numbers."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC

# Four examples of three classes used all over the specification.
TOY = Predictions(
    [[4.0, 1.0, -2.0], [0.5, 2.5, 1.0], [-6.0, 3.0, 8.0], [0.2, 0.1, 0.0]], [0, 2, 2, 1]
)
WAVY = SYNTHETIC["wavy"].sample(300, seed=0).predictions


def binary(confidence, correct):
    return Predictions.from_binary(confidence, correct, kind="probs")


@pytest.mark.filterwarnings("ignore:.*bins.*:UserWarning")
def test_golden_values_of_the_toy_batch():
    assert metrics.accuracy(TOY) == 0.5
    assert metrics.nll(TOY) == pytest.approx(0.7414901246, abs=1e-10)
    assert metrics.brier(TOY) == pytest.approx(0.4815451786, abs=1e-10)
    assert metrics.overconfidence(TOY) == pytest.approx(0.2617316664, abs=1e-10)
    assert metrics.ece(TOY) == pytest.approx(0.2899133963, abs=1e-10)
    # Each example is alone in its bin, so the largest gap is the second one's confidence.
    assert metrics.mce(TOY) == pytest.approx(0.7361247243, abs=1e-10)
    for width, expected in {0.01: 0.2899133963, 0.1: 0.2487733271, math.inf: 0.3281489659}.items():
        assert metrics.sece(TOY, bandwidth=width) == pytest.approx(expected, abs=1e-9)


def test_nll_agrees_with_scikit_learn():
    expected = log_loss(WAVY.labels.numpy(), WAVY.probs.numpy(), labels=range(10))
    assert metrics.nll(WAVY) == pytest.approx(expected, abs=1e-12)


def test_nll_of_an_impossible_label_is_infinite():
    assert metrics.nll(Predictions.from_probs([[1.0, 0.0]], [1])) == math.inf


def test_brier_is_the_sum_of_squares():
    onehot = torch.nn.functional.one_hot(WAVY.labels, 10)
    expected = float(((WAVY.probs - onehot) ** 2).sum(1).mean())
    assert metrics.brier(WAVY) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_brier_splits_without_remainder(bins):
    split = metrics.brier_split(WAVY, bins=bins)
    assert split.brier == pytest.approx(metrics.brier(WAVY), abs=1e-12)
    assert split.reliability >= 0
    assert split.resolution >= 0


def test_brier_split_equals_a_loop():
    split = metrics.brier_split(WAVY, bins=5)
    probs, labels = WAVY.probs.numpy(), WAVY.labels.numpy()
    reliability = resolution = uncertainty = 0.0
    for c in range(10):
        y, p = labels == c, probs[:, c]
        uncertainty += y.mean() * (1 - y.mean())
        index = np.clip(np.ceil(p * 5).astype(int) - 1, 0, 4)
        for b in set(index):
            inside = index == b
            reliability += inside.mean() * (p[inside].mean() - y[inside].mean()) ** 2
            resolution += inside.mean() * (y[inside].mean() - y.mean()) ** 2
    assert split.reliability == pytest.approx(reliability, abs=1e-12)
    assert split.resolution == pytest.approx(resolution, abs=1e-12)
    assert split.uncertainty == pytest.approx(uncertainty, abs=1e-12)


def test_brier_split_of_equal_forecasts_in_each_bin_is_murphys():
    p = binary([0.3] * 10 + [0.8] * 10, [1] * 4 + [0] * 6 + [1] * 7 + [0] * 3)
    split = metrics.brier_split(p, bins=10)
    assert split.within_bin == pytest.approx(0, abs=1e-12)
    # Both classes add the same: (0.3 - 0.4)^2 / 2 + (0.8 - 0.7)^2 / 2 each.
    assert split.reliability == pytest.approx(2 * 0.01)
    assert split.resolution == pytest.approx(2 * 0.15**2)


def test_ks_equals_a_loop_over_levels():
    r, c = WAVY.confidence.numpy(), WAVY.correct.numpy()
    expected = max(abs((c - r)[r <= t].sum()) for t in r) / len(r)
    assert metrics.ks(WAVY) == pytest.approx(expected, abs=1e-12)


def test_ks_sums_ties_first():
    # In the order given the sums would pass through 0.2, but 0.8 occurs at one level only.
    assert metrics.ks(binary([0.8] * 5, [1, 1, 1, 1, 0])) == pytest.approx(0)


def test_ecce_equals_a_loop_over_intervals_of_confidence():
    r, c = WAVY.confidence.numpy(), WAVY.correct.numpy()
    levels = np.unique(r)
    sums = [(c - r)[(low <= r) & (r <= high)].sum() for low in levels for high in levels]
    assert metrics.ecce(WAVY) == pytest.approx(np.abs(sums).max() / len(r), abs=1e-12)
    assert metrics.ks(WAVY) < metrics.ecce(WAVY) <= 2 * metrics.ks(WAVY)
    # All sums are of one sign: the range starts at 0.
    over = binary([0.8, 0.8, 0.9, 0.9], [1, 0, 1, 0])
    assert metrics.ecce(over) == pytest.approx(metrics.overconfidence(over))


def test_aurc_equals_a_loop():
    order = np.argsort(-WAVY.confidence.numpy())
    wrong = 1 - WAVY.correct.numpy()[order]
    expected = np.mean([wrong[: m + 1].mean() for m in range(len(wrong))])
    assert metrics.aurc(WAVY) == pytest.approx(expected, abs=1e-12)


def test_aurc_of_ties_is_the_mean_over_their_orders():
    # Right then wrong: (0 + 1/2) / 2; wrong then right: (1 + 1/2) / 2.
    assert metrics.aurc(binary([0.8, 0.8], [1, 0])) == pytest.approx((0.25 + 0.75) / 2)


def test_overconfidence_has_a_sign():
    assert metrics.overconfidence(binary([0.9] * 4, [1, 1, 0, 0])) == pytest.approx(0.4)
    assert metrics.overconfidence(binary([0.6] * 4, [1, 1, 1, 1])) == pytest.approx(-0.4)


def test_simplex_ece_equals_a_loop_over_cells():
    p = SYNTHETIC["wavy"].sample(400, seed=3).predictions
    probs, labels = p.probs.numpy(), p.labels.numpy()
    cells = {}
    for row, label in zip(probs, labels, strict=True):
        key = tuple(max(0, math.ceil(x * 4) - 1) for x in row)
        gap = row.copy()
        gap[label] -= 1
        cells[key] = cells.get(key, 0) + gap
    expected = sum(np.abs(gap).sum() / 2 for gap in cells.values()) / 400
    assert metrics.simplex_ece(p, bins=4) == pytest.approx(expected, abs=1e-12)


def test_simplex_ece_does_not_change_its_input():
    before = WAVY.probs.clone()
    metrics.simplex_ece(WAVY)
    assert torch.equal(WAVY.probs, before)
