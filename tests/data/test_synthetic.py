"""Synthetic predictions with known posterior and known calibration error."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.data import SYNTHETIC


@pytest.mark.parametrize("name", SYNTHETIC)
class TestEverySynthetic:
    def test_samples_are_distributions_and_determined_by_the_seed(self, name):
        one, two = (SYNTHETIC[name].sample(2000, seed=7) for _ in range(2))
        for probs in (one.posterior, one.predictions.probs):
            assert (probs >= 0).all()
            np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
        torch.testing.assert_close(one.predictions.probs, two.predictions.probs)
        assert torch.equal(one.predictions.labels, two.predictions.labels)

    def test_labels_have_the_frequencies_of_the_posterior_and_errors_their_true_values(self, name):
        synthetic = SYNTHETIC[name]
        sample = synthetic.sample(1_000_000, seed=3)
        chance = sample.posterior.gather(1, sample.predictions.predicted[:, None])[:, 0]
        correct = sample.predictions.correct
        for low, high in ((0.0, 0.6), (0.6, 0.9), (0.9, 1.0)):
            inside = (chance > low) & (chance <= high)
            if inside.sum() >= 500:
                spread = float((chance * (1 - chance))[inside].mean() / inside.sum()) ** 0.5
                gap = float(correct[inside].mean() - chance[inside].mean())
                assert abs(gap) < 5 * spread + 1e-9
        gap = (chance - sample.predictions.confidence).abs()
        assert synthetic.true_error() == pytest.approx(float(gap.mean()), abs=5e-4)
        assert synthetic.true_error(2) == pytest.approx(float((gap**2).mean() ** 0.5), abs=5e-4)
        found = metrics.ece(sample.predictions)
        assert found == pytest.approx(synthetic.true_binned_error(15), abs=3e-3)
        for bins in (1, 4, 15):
            assert synthetic.true_binned_error(bins) <= synthetic.true_error() + 1e-9


def test_calibrated_has_no_error_and_wavy_has_errors_that_cancel_in_bins():
    assert SYNTHETIC["calibrated"].true_error() == pytest.approx(0, abs=1e-12)
    wavy = SYNTHETIC["wavy"]
    assert wavy.true_binned_error(15) < 0.8 * wavy.true_error()


@given(n=st.integers(1, 30))
def test_any_size_can_be_drawn(n):
    assert len(SYNTHETIC["tempered"].sample(n, seed=0).predictions) == n


class TestBias:
    """The mean of each estimator, compared with the true error."""

    def mean(self, metric, name, n, repeats=60):
        samples = (SYNTHETIC[name].sample(n, seed=s).predictions for s in range(repeats))
        return float(np.mean([metric(p) for p in samples]))

    def test_ece_is_biased_upwards_and_less_so_with_more_examples(self):
        small, large = (self.mean(metrics.ece, "calibrated", n) for n in (200, 3200))
        assert small > 0.05
        assert large == pytest.approx(small / 4, rel=0.25)  # falls with the root of n

    def test_sece_is_biased_at_small_and_at_large_bandwidths(self):
        narrow = self.mean(lambda p: metrics.sece(p, bandwidth=0.01), "calibrated", 128)
        wide = self.mean(lambda p: metrics.sece(p, bandwidth=0.1), "calibrated", 128)
        assert narrow > 0.1
        assert wide < narrow / 2
        many = self.mean(lambda p: metrics.sece(p, bandwidth=1.0), "calibrated", 50_000, 2)
        assert many > 0.1

    def test_sece_with_a_shrinking_bandwidth_tends_to_the_true_error(self):
        truth = SYNTHETIC["wavy"].true_error()
        many = self.mean(lambda p: metrics.sece(p, bandwidth=0.01), "wavy", 500_000, 1)
        assert many == pytest.approx(truth, rel=0.1)

    def test_leave_one_out_sece_is_biased(self):
        left_out = self.mean(lambda p: metrics.sece(p, form="leave_one_out"), "calibrated", 128)
        assert left_out > 0.1
