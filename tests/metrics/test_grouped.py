"""Calibration within groups, against a loop over them."""

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.predictions import Predictions


def grouped(n: int = 1400, groups: int = 7, seed: int = 0, **extras) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.randint(4, (n,), generator=generator)
    return Predictions(logits, labels, groups=torch.arange(n) % groups, **extras)


def test_it_is_the_mean_of_the_errors_of_each_group():
    p = grouped()
    parts = [metrics.ece(p.take(p.groups == g)) for g in range(7)]
    assert metrics.group_ece(p) == pytest.approx(np.mean(parts), abs=1e-14)
    assert metrics.group_ece(p) >= metrics.ece(p)


def test_one_group_is_the_error_of_all_also_with_weights():
    weights = torch.rand(1400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for p in (grouped(groups=1), grouped(groups=1, weights=weights)):
        assert metrics.group_ece(p, bins=9) == pytest.approx(metrics.ece(p, bins=9), abs=1e-14)


def test_the_interval_draws_whole_groups():
    p = grouped(n=600, groups=12)
    reading = metrics.interval(metrics.group_ece, p, resamples=50)
    assert reading.low <= reading.value <= reading.high
    # A group that is drawn twice counts twice: the mean of two groups' errors lies between them.
    errors = [metrics.group_ece(p.take(p.groups == g)) for g in range(12)]
    assert min(errors) < reading.low < reading.high < max(errors)


def test_groups_without_confident_examples_or_without_weight():
    # The last group has nothing in the last bins, the second one no weight.
    p = Predictions.from_probs(
        [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 1], groups=[0, 1, 2], weights=[1, 0, 1]
    )
    assert metrics.group_ece(p) == pytest.approx((0.1 + 0.6) / 2, abs=1e-7)


def test_predictions_without_groups_are_refused():
    with pytest.raises(ValueError, match="group_ece needs groups"):
        metrics.group_ece(Predictions(torch.randn(20, 3), torch.zeros(20).long()))
