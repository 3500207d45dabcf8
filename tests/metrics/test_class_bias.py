"""Mean probability of each class against its frequency."""

import math

import numpy as np
import pytest

from calibrant import Predictions, metrics


def drawn(n, seed, *, tilt=0.0):
    """Predictions of four classes; the labels are drawn with class 2 made likelier by `tilt`."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, 4)) * 2
    true = np.exp(logits + tilt * np.eye(4)[2])
    true /= true.sum(1, keepdims=True)
    labels = (generator.random(n)[:, None] > true.cumsum(1)).sum(1).clip(max=3)
    return Predictions(logits, labels, class_names=["ant", "bee", "cat", "dog"])


def test_equals_plain_means():
    p = drawn(300, 0).reweighted(np.random.default_rng(1).integers(1, 4, 300))
    weights = p.example_weights
    for c, found in enumerate(metrics.class_biases(p)):
        own = p.labels.numpy() == c
        assert found.count == weights[own].sum()
        assert found.frequency == pytest.approx(np.average(own, weights=weights))
        means = np.average(p.probs[:, c].numpy(), weights=weights)
        assert found.mean_probability == pytest.approx(means, abs=1e-12)
        assert found.error == pytest.approx(means - found.frequency)
        assert math.isnan(found.p_value)


def test_names_the_class_that_is_under_predicted():
    found = {each.name: each for each in metrics.class_biases(drawn(4000, 0, tilt=0.5))}
    assert found["cat"].p_value < 0.001
    assert found["cat"].error < -0.03


def test_rarely_names_a_class_of_calibrated_predictions():
    alarms = [
        any(each.p_value < 0.05 for each in metrics.class_biases(drawn(300, seed)))
        for seed in range(200)
    ]
    assert np.mean(alarms) < 0.1


def test_a_few_unexpected_examples_of_a_rare_class_are_tested_as_counts():
    probs = np.full((1000, 3), 0.0005)
    probs[:, 0] = 0.999
    labels = np.zeros(1000, dtype=int)
    labels[:3] = 1
    rare = metrics.class_biases(Predictions.from_probs(probs, labels))[1]
    # Poisson with mean 0.5: P(X >= 3) = 0.014388, two-sided, three classes.
    assert (rare.count, rare.p_value) == (3, pytest.approx(6 * 0.014388, abs=1e-4))


def test_two_classes_are_one_test_without_correction():
    generator = np.random.default_rng(0)
    probs = generator.random(500)
    p = Predictions.from_binary(probs, generator.random(500) < probs - 0.03, kind="probs")
    first, second = (each.p_value for each in metrics.class_biases(p))
    excess = probs.sum() - p.labels.sum().item()
    errors = probs - p.labels.numpy()
    variance = max((probs * (1 - probs)).sum(), 500 * errors.var())
    alone = math.erfc(abs(excess) / math.sqrt(2 * variance))
    assert first == second == pytest.approx(alone, rel=1e-6)
