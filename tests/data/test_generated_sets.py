"""Embedded datasets with known posterior."""

import numpy as np
import pytest
import torch

from calibrant.data import load
from calibrant.data.generated import _stream


@pytest.mark.parametrize("name", ["blobs", "teacher"])
class TestKnownPosterior:
    def test_it_is_a_distribution_on_every_split(self, name):
        splits = load(name, 0).with_meta(0.2, seed=0)
        for part in (splits.train, splits.meta, splits.val, splits.test):
            assert part.posterior.shape == (len(part), splits.classes)
            assert (part.posterior >= 0).all()
            np.testing.assert_allclose(part.posterior.sum(1), 1, atol=1e-12)

    def test_labels_have_the_frequencies_of_the_posterior(self, name):
        split = load(name, 0, test_n=40_000).test
        for c, chance in enumerate(split.posterior.numpy().T):
            hit = split.labels.numpy() == c
            for low, high in ((0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 1.01)):
                inside = (chance >= low) & (chance < high)
                if inside.sum() < 200:
                    continue
                spread = float((chance * (1 - chance))[inside].sum()) ** 0.5
                assert abs(float((hit - chance)[inside].sum())) < 5 * spread + 1e-9

    def test_sizes_are_options_and_invalid_ones_raise(self, name):
        splits = load(name, 0, n=100, test_n=30, classes=3, dimensions=5)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (90, 10, 30)
        assert splits.shape == (5,)
        assert splits.classes == 3
        assert splits.kind == "vectors"
        with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
            load(name, 0, classes=1)
        with pytest.raises(ValueError, match="n must be positive, got 0"):
            load(name, 0, n=0)


def test_the_posterior_of_blobs_is_bayes_rule():
    split = load("blobs", 0, spread=1.5, classes=3).test
    means = _stream(0).normal(size=(3, 2)) * 2
    x = split.inputs[7].double().numpy()
    density = np.array([np.exp(-((x - m) ** 2).sum() / (2 * 1.5**2)) for m in means])
    np.testing.assert_allclose(split.posterior[7], density / density.sum(), rtol=1e-9)


def test_temperature_makes_labels_harder_for_the_same_inputs():
    cold, hot = (load("teacher", 0, temperature=t).test for t in (0.5, 4.0))
    assert torch.equal(cold.inputs, hot.inputs)
    assert cold.posterior.amax(1).mean() > hot.posterior.amax(1).mean() + 0.2
    with pytest.raises(ValueError, match="temperature must be positive"):
        load("teacher", 0, temperature=0)


def test_digits_span_the_full_range_and_every_seed_has_the_same_test():
    splits = load("digits", 0)
    assert (splits.kind, splits.classes, splits.shape) == ("images", 10, (1, 8, 8))
    assert splits.train.inputs.dtype == torch.uint8
    assert (int(splits.train.inputs.min()), int(splits.train.inputs.max())) == (0, 255)
    assert len(splits.train) + len(splits.val) + len(splits.test) == 1797
    assert torch.equal(splits.test.rows, load("digits", 9, val=0.3).test.rows)
