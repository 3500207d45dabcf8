"""Soft labels: every weighted metric becomes its expectation."""

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC, load, with_soft_labels


@pytest.fixture
def soft():
    generator = torch.Generator().manual_seed(0)
    p = Predictions(2 * torch.randn(300, 4, generator=generator), torch.zeros(300).long())
    posterior = torch.rand(300, 4, generator=generator, dtype=torch.float64) ** 3
    posterior[:50, 0] = 0
    posterior[::7] = torch.eye(4, dtype=torch.float64)[1]
    return p, posterior / posterior.sum(1, keepdim=True)


def test_metrics_are_their_expectations_over_labels_drawn_from_the_posterior(soft):
    p, posterior = soft
    q = with_soft_labels(p, posterior)
    log_probs = p.logits.double().log_softmax(1)
    assert metrics.nll(q) == pytest.approx(float(-(posterior * log_probs).sum(1).mean()), abs=1e-6)
    chance = posterior.gather(1, p.predicted[:, None])[:, 0]
    assert metrics.accuracy(q) == pytest.approx(float(chance.mean()), abs=1e-12)
    brier = ((log_probs.exp()[:, :, None] - torch.eye(4)) ** 2).sum(1)
    assert metrics.brier(q) == pytest.approx(float((posterior * brier).sum(1).mean()), abs=1e-6)
    # ECE compares the mean confidence of each bin with the mean true probability.
    gaps = np.zeros(15)
    for confidence, truth in zip(p.confidence.tolist(), chance.tolist(), strict=True):
        inside = next(b for b in range(15) if confidence <= (b + 1) / 15 or b == 14)
        gaps[inside] += truth - confidence
    assert metrics.ece(q) == pytest.approx(np.abs(gaps).sum() / len(p), abs=1e-12)


def test_one_hot_posteriors_equal_hard_labels(soft):
    p, _ = soft
    labels = torch.randint(0, 4, (len(p),))
    q = with_soft_labels(p, torch.nn.functional.one_hot(labels, 4))
    assert len(q) == len(p)
    for metric in metrics.metrics_for(4).values():
        assert metric(q) == pytest.approx(metric(p.relabelled(labels)), abs=1e-9)


def test_weights_of_an_example_sum_to_its_weight_and_groups_are_kept(soft):
    p, posterior = soft
    q = with_soft_labels(p, posterior)
    assert len(q) == int((posterior > 0).sum())
    assert q.groups.unique().tolist() == list(range(len(p)))
    sums = torch.zeros(len(p), dtype=torch.float64).index_add(0, q.groups, q.weights)
    np.testing.assert_allclose(sums, 1, atol=1e-12)
    weights = torch.rand(300, dtype=torch.float64)
    grouped = Predictions(p.logits, p.labels, weights=weights, groups=np.arange(300) // 10)
    q = with_soft_labels(grouped, posterior)
    assert float(q.weights.sum()) == pytest.approx(float(weights.sum()))
    assert q.groups.unique().tolist() == list(range(30))


def test_probabilities_on_a_bin_edge_stay_there():
    p = Predictions.from_probs([[0.6, 0.4], [0.2, 0.8]], [0, 0])
    q = with_soft_labels(p, [[0.5, 0.5], [1.0, 0.0]])
    assert q.confidence.tolist() == [0.6, 0.6, 0.8]


def test_calibrated_models_have_no_error_against_their_posterior():
    sample = SYNTHETIC["calibrated"].sample(2000, seed=0)
    assert metrics.ece(sample.predictions) > 0.005
    assert metrics.ece(with_soft_labels(sample.predictions, sample.posterior)) < 1e-9
    split = load("teacher", 0).test
    p = Predictions.from_probs(split.posterior, split.labels)
    assert metrics.ece(with_soft_labels(p, split.posterior)) < 1e-9
    entropy = float(stats.entropy(split.posterior.numpy(), axis=1).mean())
    assert metrics.nll(with_soft_labels(p, split.posterior)) == pytest.approx(entropy, abs=1e-9)


@pytest.mark.parametrize(
    ("posterior", "words"),
    [
        (torch.ones(300, 3) / 3, r"posterior must be \(300, 4\)"),
        (torch.ones(10, 4) / 4, r"posterior must be \(300, 4\)"),
        (torch.ones(300, 4), "do not sum to 1"),
        (torch.full((300, 4), float("nan")), "NaN"),
        (torch.tensor([[1.5, -0.5, 0, 0]]).repeat(300, 1), r"outside \[0, 1\]"),
    ],
)
def test_invalid_posteriors_raise(soft, posterior, words):
    with pytest.raises(ValueError, match=words):
        with_soft_labels(soft[0], posterior)
