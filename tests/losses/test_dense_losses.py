"""Losses of pixels: flatten first, then the loss."""

import torch
from torch.testing import assert_close

from calibrant.losses import cals, cross_entropy, focal, mmce
from calibrant.shapes import flatten_dense

IGNORED = 255


def images():
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    labels = torch.randint(3, (2, 4, 5))
    labels[0, :2] = IGNORED
    return logits, labels


def test_cross_entropy_of_pixels_is_that_of_torch():
    logits, labels = images()
    flat, flat_labels, _ = flatten_dense(logits, labels, ignore_index=IGNORED)
    expected = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
    assert_close(cross_entropy(flat, flat_labels).mean(), expected)


def test_ignored_pixels_do_not_affect_any_term():
    logits, labels = images()
    changed = logits.clone()
    changed[0, :, :2] = 1e3
    for loss in (focal, cals, mmce):
        values = []
        for dense in (logits, changed):
            dense = dense.clone().requires_grad_()
            flat, flat_labels, _ = flatten_dense(dense, labels, ignore_index=IGNORED)
            value = loss(flat, flat_labels).mean()
            value.backward()
            assert (dense.grad[0, :, :2] == 0).all()
            assert (dense.grad[1] != 0).any()
            values.append(value)
        assert_close(*values)


def test_flat_pixels_stay_on_the_device_of_the_labels():
    logits = torch.zeros(2, 3, 4, 5, device="meta")
    labels = torch.zeros(2, 4, 5, dtype=torch.long, device="meta")
    for part in flatten_dense(logits, labels, ignore_index=None):
        assert part.device.type == "meta"
