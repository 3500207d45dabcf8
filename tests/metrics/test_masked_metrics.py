"""Classes masked by a logit of -inf count as classes of probability 0 in every metric."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics

K = 4


def masked_examples(n: int = 400) -> Predictions:
    """Answers to questions with one to four options."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, K)) * 3
    options = generator.integers(1, K + 1, n)[:, None]
    logits[generator.permuted(np.tile(np.arange(K), (n, 1)), axis=1) >= options] = -np.inf
    labels = (logits / 2 + generator.gumbel(size=(n, K))).argmax(1)
    return Predictions(logits, labels)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", metrics.metrics_for(K))
class TestEveryMetric:
    def test_treats_a_masked_class_as_probability_zero(self, name):
        data, metric = masked_examples(), metrics.METRICS[name]
        given = Predictions.from_probs(data.logits.softmax(1), data.labels)
        assert metric(data) == pytest.approx(metric(given), abs=1e-12)
        assert np.isfinite(metric(data))

    def test_ignores_a_class_that_is_masked_in_every_example(self, name):
        data, metric = masked_examples(), metrics.METRICS[name]
        column = torch.full((len(data), 1), -torch.inf).double()
        more = Predictions(torch.cat([data.logits, column], 1), data.labels)
        assert metric(more) == pytest.approx(metric(data), abs=1e-12)

    def test_has_a_finite_interval(self, name):
        found = metrics.interval(metrics.METRICS[name], masked_examples(), resamples=20)
        assert np.isfinite([found.value, found.low, found.high]).all()


def test_scores_by_a_loop_over_the_allowed_classes():
    data = masked_examples(50)
    surprise, square = 0.0, 0.0
    for row, label in zip(data.logits.numpy(), data.labels.tolist(), strict=True):
        probs = np.exp(row[row > -np.inf]) / np.exp(row[row > -np.inf]).sum()
        own = int((row[:label] > -np.inf).sum())
        surprise -= np.log(probs[own]) / 50
        square += ((probs - (np.arange(len(probs)) == own)) ** 2).sum() / 50
    assert metrics.nll(data) == pytest.approx(surprise)
    assert metrics.brier(data) == pytest.approx(square)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tests_and_the_summary_are_finite():
    data = masked_examples()
    assert "nan" not in str(metrics.summary(data, resamples=20))
    found = [metrics.spiegelhalter(data), metrics.spiegelhalter(data, every_class=True)]
    found.append(metrics.consistency_test(data, resamples=20))
    assert np.isfinite([[each.statistic, each.p_value] for each in found]).all()
    assert np.isfinite(metrics.per_class_ece(data, adaptive=True)).all()


def test_a_label_on_a_masked_class_has_an_infinite_log_score():
    sure = Predictions([[0.0, -np.inf], [0.0, 1.0]], [1, 1])
    assert metrics.nll(sure) == np.inf
    assert metrics.brier(sure) == pytest.approx((2 + 2 * 0.2689414214**2) / 2)
