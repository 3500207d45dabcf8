"""Logit adjustment: log class frequencies are added in training, with any method."""

from functools import partial

import pytest
import torch
from torch import nn

from calibrant import data, losses, methods
from calibrant.data import Batch

COUNTS = torch.tensor([70, 25, 5])


def batch() -> Batch:
    torch.manual_seed(0)
    logits = torch.randn(8, 3, dtype=torch.float64)
    return Batch(logits, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.arange(8))


def loss(name: str, **settings) -> torch.Tensor:
    method = methods.build(name, classes=3, **settings)
    method.counts = COUNTS
    return method.loss(nn.Identity(), batch())


def test_adjusted_losses_are_cross_entropy_of_logits_plus_log_frequencies():
    z, y = batch().inputs, batch().labels
    expected = losses.cross_entropy(z + 0.7 * (COUNTS / 100).double().log(), y)
    torch.testing.assert_close(loss("logit_adjustment", tau=0.7), expected)
    torch.testing.assert_close(loss("cross_entropy", adjust=0.7), expected)
    # Balanced softmax weighs each exponential by the count.
    weighted = COUNTS.double() * z.exp()
    by_hand = -(weighted.gather(1, y[:, None])[:, 0] / weighted.sum(1)).log()
    torch.testing.assert_close(loss("balanced_softmax"), by_hand)


@pytest.mark.parametrize("name", ["cals", "acls", "margin_smoothing"])
def test_margins_stay_those_of_the_logits_of_inference(name):
    z, y = batch().inputs, batch().labels
    function = losses.LOSSES[name]
    penalty = partial(function, margin=0.5)(z, y) - losses.cross_entropy(z, y)
    expected = penalty + loss("balanced_softmax")
    torch.testing.assert_close(loss(name, margin=0.5, adjust=1.0), expected)
    if name == "cals":
        torch.testing.assert_close(loss("cals_alm", margin=0.5, adjust=1.0), expected)
    # Also as the base of a batch statistic, which is one of the adjusted logits.
    plain = function(z, y) - losses.cross_entropy(z, y) + loss("balanced_softmax")
    log_counts = COUNTS.double().log()
    statistic = losses.mmce(z + log_counts - log_counts.mean(), y)
    torch.testing.assert_close(loss("mmce", base=name, adjust=1.0), plain + 4 * statistic)


def test_prepare_counts_the_classes():
    splits = data.load("blobs", 0, long_tail=10.0)
    method = methods.build("balanced_softmax", classes=splits.classes)
    method.prepare(splits, method.ranks)
    assert torch.equal(method.counts, torch.bincount(splits.train.labels))


def test_missing_counts_and_invalid_settings_raise_and_an_empty_class_is_finite():
    with pytest.raises(ValueError, match="adjust needs the counts of each class"):
        methods.build("balanced_softmax", classes=3).loss(nn.Identity(), batch())
    with pytest.raises(ValueError, match="adjust must be at least 0"):
        methods.build("focal", classes=3, adjust=-1.0)
    with pytest.raises(ValueError, match="no setting 'adjust'"):
        methods.build("balanced_softmax", classes=3, adjust=1.0)
    method = methods.build("balanced_softmax", classes=3)
    method.counts = torch.tensor([9, 1, 0])
    assert method.loss(nn.Identity(), batch()).isfinite().all()
