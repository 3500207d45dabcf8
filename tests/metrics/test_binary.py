"""Metrics of the probability of the positive class."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from calibrant import Predictions, metrics
from calibrant.metrics.resampling.draws import resampler


def sample(n=400, *, slope=0.6, shift=-1.0, digits=None, seed=0):
    """Scores whose log-odds are off by a slope and a shift."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(size=n) * 2
    labels = (generator.random(n) < 1 / (1 + np.exp(-(slope * odds + shift)))).astype(int)
    probs = 1 / (1 + np.exp(-odds))
    probs = probs if digits is None else np.round(probs, digits).clip(0.01, 0.99)
    return Predictions.from_binary(probs, labels, kind="probs")


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_scikit_learn(digits, weighted):
    p = sample(digits=digits)
    weights = np.random.default_rng(1).integers(0, 4, len(p)).astype(float)
    p = p.reweighted(weights) if weighted else p
    labels, probs, own = p.labels.numpy(), p.positive_probs.numpy(), p.example_weights
    for ours, theirs in (
        (metrics.roc_auc, roc_auc_score),
        (metrics.average_precision, average_precision_score),
        (metrics.binary_brier, brier_score_loss),
    ):
        assert ours(p) == pytest.approx(theirs(labels, probs, sample_weight=own), abs=1e-12)


def test_the_brier_score_of_two_classes_is_twice_that_of_one():
    p = sample()
    assert metrics.binary_brier(p) == pytest.approx(metrics.brier(p) / 2, abs=1e-12)
    rate = metrics.base_rate(p)
    reference = rate * (1 - rate)
    assert metrics.brier_skill(p) == pytest.approx(1 - metrics.binary_brier(p) / reference)
    constant = Predictions.from_binary(np.full(len(p), rate), p.labels, kind="probs")
    assert metrics.brier_skill(constant) == pytest.approx(0, abs=1e-12)


def test_binary_ece_is_that_of_class_one():
    p = sample()
    assert metrics.binary_ece(p) == pytest.approx(metrics.per_class_ece(p)[1], abs=1e-12)


def test_slope_and_intercept_have_the_largest_likelihood():
    p = sample(digits=2)
    odds, labels = p.log_odds.numpy(), p.labels.numpy()

    def loss(at):
        linear = at[0] + at[1] * odds
        return np.logaddexp(0, linear).sum() - labels @ linear

    best = minimize(loss, [0.0, 1.0], method="BFGS", options={"gtol": 1e-8})
    assert metrics.calibration_slope(p) == pytest.approx(best.x[1], abs=1e-5)
    alone = minimize(lambda a: loss([a[0], 1.0]), [0.0], method="BFGS", options={"gtol": 1e-8})
    assert metrics.calibration_intercept(p) == pytest.approx(alone.x[0], abs=1e-5)


def test_recovers_a_planted_slope_and_shift():
    p = sample(100_000, slope=0.6, shift=-1.0)
    assert metrics.calibration_slope(p) == pytest.approx(0.6, abs=0.02)
    shifted = sample(100_000, slope=1.0, shift=-1.0)
    assert metrics.calibration_intercept(shifted) == pytest.approx(-1.0, abs=0.03)
    assert metrics.calibration_in_the_large(shifted) == pytest.approx(
        metrics.mean_probability(shifted) - metrics.base_rate(shifted)
    )


@pytest.mark.parametrize(
    ("scores", "labels", "slope", "intercept"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], math.inf, None),
        ([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0], -math.inf, None),
        ([0.5, 0.5], [0, 1], math.nan, 0.0),
        ([0.3, 0.6], [1, 1], math.nan, math.inf),
        ([0.3, 0.6], [0, 0], math.nan, -math.inf),
    ],
    ids=["separated", "reversed", "constant", "all positive", "all negative"],
)
def test_a_likelihood_without_a_maximum_has_an_infinite_or_no_solution(
    scores, labels, slope, intercept
):
    p = Predictions.from_binary(scores, labels, kind="probs")
    assert metrics.calibration_slope(p) == pytest.approx(slope, nan_ok=True)
    if intercept is not None:
        assert metrics.calibration_intercept(p) == pytest.approx(intercept, abs=1e-9)


def test_a_masked_class_takes_no_part_in_the_slope():
    p = sample()
    masked = Predictions(
        torch.cat([p.logits, torch.tensor([[0.0, -math.inf]], dtype=torch.float64)]),
        torch.cat([p.labels, torch.tensor([0])]),
    )
    assert metrics.calibration_slope(masked) == pytest.approx(metrics.calibration_slope(p))
    assert masked.positive_probs[-1] == 0


def test_extreme_scores_keep_their_order():
    odds = torch.tensor([40.0, 41.0, -40.0, -41.0], dtype=torch.float64)
    p = Predictions.from_binary(odds, [0, 1, 1, 0], kind="logits")
    assert metrics.roc_auc(p) == 0.75
    assert p.log_odds.tolist() == odds.tolist()


def test_expected_and_observed_positives_at_thresholds():
    p = Predictions.from_binary([0.9, 0.6, 0.5, 0.2], [1, 0, 1, 0], kind="probs")
    half, most, none = metrics.at_thresholds(p, [0.5, 0.55, 0.95])
    assert (half.flagged, half.expected, half.observed) == (3, pytest.approx(2.0), 2)
    assert (half.precision, half.recall) == (pytest.approx(2 / 3), 1)
    assert (most.flagged, most.recall) == (2, 0.5)
    assert none.flagged == 0
    assert math.isnan(none.precision)
    with pytest.raises(ValueError, match=r"thresholds must lie in \[0, 1\], got 1.5"):
        metrics.at_thresholds(p, [1.5])


def test_the_positive_class_can_be_chosen():
    p = Predictions.from_probs(
        [[0.9, 0.1], [0.4, 0.6]], [0, 1], class_names=["spam", "ham"], weights=[1.0, 2.0]
    )
    flipped = p.with_positive("spam")
    assert flipped.positive_probs.tolist() == [0.9, 0.4]
    assert (flipped.labels.tolist(), flipped.class_names) == ([1, 0], ("ham", "spam"))
    assert flipped.weights.tolist() == [1.0, 2.0]
    assert p.with_positive(1) is p
    assert p.with_positive("0").labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="positive must be one of spam, ham, 0, 1, got 'egg'"):
        p.with_positive("egg")
    with pytest.raises(ValueError, match="this needs two classes, got 3"):
        metrics.roc_auc(Predictions([[1.0, 0.0, 2.0]], [0]))


def test_resamples_without_positives_do_not_spoil_an_interval():
    generator = np.random.default_rng(0)
    p = Predictions.from_binary(generator.random(50), [1] * 2 + [0] * 48, kind="probs")
    assert math.isnan(resampler(metrics.roc_auc, p)((p.labels == 0).double().numpy()))
    found = metrics.interval(metrics.roc_auc, p, resamples=200)
    assert found.low <= found.high
