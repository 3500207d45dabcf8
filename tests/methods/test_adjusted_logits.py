"""Logit adjustment: the shares of the classes are added in training, and composes with all."""

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


def test_adjusted_cross_entropy_is_that_of_logits_plus_log_shares():
    shifted = batch().inputs + 0.7 * (COUNTS / 100).double().log()
    expected = losses.cross_entropy(shifted, batch().labels)
    torch.testing.assert_close(loss("logit_adjustment", tau=0.7), expected)
    torch.testing.assert_close(loss("cross_entropy", adjust=0.7), expected)


def test_balanced_softmax_weighs_each_exponential_by_the_count():
    z, y = batch().inputs, batch().labels
    weighted = COUNTS.double() * z.exp()
    by_hand = -(weighted.gather(1, y[:, None])[:, 0] / weighted.sum(1)).log()
    torch.testing.assert_close(loss("balanced_softmax"), by_hand)


def test_the_margins_of_cals_stay_those_of_the_logits_of_inference():
    method = methods.build("cals_alm", classes=3, margin=0.5, adjust=1.0)
    method.counts = COUNTS
    z, y = batch().inputs, batch().labels
    price = losses.cals(z, y, margin=0.5) - losses.cross_entropy(z, y)
    expected = price + loss("balanced_softmax")
    torch.testing.assert_close(method.loss(nn.Identity(), batch()), expected)


@pytest.mark.parametrize("name", ["cals", "acls", "margin_smoothing"])
def test_margins_of_a_plain_loss_stay_those_of_the_logits_of_inference(name):
    z, y = batch().inputs, batch().labels
    usual = losses.LOSSES[name]
    price = partial(usual, margin=0.5)(z, y) - losses.cross_entropy(z, y)
    expected = price + loss("balanced_softmax")
    torch.testing.assert_close(loss(name, margin=0.5, adjust=1.0), expected)
    # As the base of a statistic, too, which is one of the adjusted answers.
    plain = usual(z, y) - losses.cross_entropy(z, y) + loss("balanced_softmax")
    shares = COUNTS.double().log()
    statistic = losses.mmce(z + shares - shares.mean(), y)
    torch.testing.assert_close(loss("mmce", base=name, adjust=1.0), plain + 4 * statistic)


def test_the_loop_counts_the_classes_and_pixels_that_count():
    splits = data.load("blobs", 0, long_tail=10.0)
    method = methods.build("balanced_softmax", classes=splits.classes)
    method.prepare(splits, method.ranks)
    assert torch.equal(method.counts, torch.bincount(splits.train.labels))


def test_without_counts_the_adjustment_says_what_is_missing():
    with pytest.raises(ValueError, match="adjust needs the counts of each class"):
        methods.build("balanced_softmax", classes=3).loss(nn.Identity(), batch())
    with pytest.raises(ValueError, match="adjust must be at least 0"):
        methods.build("focal", classes=3, adjust=-1.0)
    with pytest.raises(ValueError, match="no setting 'adjust'"):
        methods.build("balanced_softmax", classes=3, adjust=1.0)


def test_a_class_without_examples_does_not_make_the_loss_infinite():
    method = methods.build("balanced_softmax", classes=3)
    method.counts = torch.tensor([9, 1, 0])
    assert method.loss(nn.Identity(), batch()).isfinite().all()
