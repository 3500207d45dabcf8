"""Losses of masks as modules, on their own and in a MONAI network."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from calibrant import Predictions, losses
from calibrant.integrations.segmentation import SegmentationLoss
from calibrant.losses import neighbour_shares
from calibrant.methods import METHODS, Calmo, CalsAlm
from calibrant.shapes import flatten_dense

VOID = 255
NOT_OF_LOGITS = {"calmo", "gamma_net", "meta_smoothing"}


@pytest.fixture
def masks():
    labels = torch.randint(4, (3, 6, 5))
    labels[0, :2] = labels[2] = VOID
    return torch.randn(3, 4, 6, 5, dtype=torch.float64), labels


def test_every_loss_of_logits_is_the_mean_over_valid_pixels(masks):
    logits, labels = masks
    for name in sorted(METHODS.keys() - NOT_OF_LOGITS - {"logit_adjustment", "balanced_softmax"}):
        loss = SegmentationLoss(name, classes=4, ignore_index=VOID)
        found = loss(logits, labels)
        assert found.shape == ()
        # A class axis of MONAI, floats, and another number of ignored pixels change nothing.
        assert_close(loss(logits, labels[:, None].float()), found)
        changed = logits.clone()
        changed.movedim(1, -1)[labels == VOID] = 7.0
        assert_close(loss(changed, labels), found, msg=name)
    flat, valid, _ = flatten_dense(logits, labels, ignore_index=VOID)
    loss = SegmentationLoss("focal", classes=4, ignore_index=VOID, gamma=2.0)
    assert_close(loss(logits, labels), losses.focal(flat, valid, gamma=2.0).mean())


@pytest.mark.parametrize("name", ["hard_l1_ace", "soft_l1_ace"])
def test_the_average_error_is_a_mean_over_images_with_valid_pixels(name, masks):
    logits, labels = masks
    loss = SegmentationLoss(name, classes=4, ignore_index=VOID, weight=1.0)
    each = [
        losses.LOSSES[name](*flatten_dense(z[None], y[None], ignore_index=VOID)[:2])
        for z, y in zip(logits[:2], labels[:2], strict=True)
    ]
    base = losses.cross_entropy(*flatten_dense(logits, labels, ignore_index=VOID)[:2]).mean()
    assert_close(loss(logits, labels), base + torch.stack(each).mean())


def test_two_processes_average_over_the_images_of_both(masks):
    logits, labels = masks
    loss = SegmentationLoss("hard_l1_ace", classes=4, ignore_index=VOID)
    expected = loss(logits, labels)
    sent = []

    class Second:
        """The second of two processes; what the first sends is known."""

        rank = 1

        def gather(self, tensor):
            return torch.cat([sent.pop(0), tensor])

        total = gather

    first = flatten_dense(logits[:1], labels[:1], ignore_index=VOID)
    sent += list(first)
    loss.method.ranks = Second()
    method = loss.method
    flat, valid, _ = flatten_dense(logits[1:], labels[1:], ignore_index=VOID)
    term = loss(logits[1:], labels[1:]) - losses.cross_entropy(flat, valid).mean()
    whole = flatten_dense(logits, labels, ignore_index=VOID)
    assert_close(term, expected - losses.cross_entropy(*whole[:2]).mean())
    assert method.ranks.rank == 1
    assert not sent


def test_neighbours_reach_the_loss_of_each_pixel(masks):
    logits, labels = masks
    loss = SegmentationLoss("nacl", classes=4, ignore_index=VOID, alpha=0.7, size=5)
    shares = neighbour_shares(labels, 4, size=5, ignore_index=VOID).double()
    flat, valid, _ = flatten_dense(logits, labels, ignore_index=VOID)
    near, _, _ = flatten_dense(shares, labels, ignore_index=VOID)
    by_hand = losses.cross_entropy(flat, valid) + 0.7 * (near - flat).abs().mean(1)
    assert_close(loss(logits, labels), by_hand.mean())


def test_state_is_saved_with_the_module_and_updated_by_validation(masks):
    logits, labels = masks
    loss = SegmentationLoss(CalsAlm(4, margin=0.1), ignore_index=VOID)
    before = loss(logits, labels)
    found = Predictions.from_dense(logits, labels, ignore_index=VOID)
    assert loss.method.after_epoch(found)["multiplier_mean"] > 0
    assert loss(logits, labels) > before
    other = SegmentationLoss("cals_alm", classes=4, ignore_index=VOID, margin=0.1)
    other.load_state_dict(loss.state_dict())
    assert_close(other(logits, labels), loss(logits, labels), rtol=0, atol=0)


def test_a_batch_without_valid_pixels_has_no_loss(masks):
    logits, labels = masks
    for name in ("nacl", "soft_l1_ace", "cals_alm"):
        given = logits.clone().requires_grad_()
        loss = SegmentationLoss(name, classes=4, ignore_index=VOID)
        loss(given, torch.full_like(labels, VOID)).backward()
        assert not given.grad.any()


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_work_is_refused(masks):
    logits, labels = masks
    with pytest.raises(ValueError, match="pass classes="):
        SegmentationLoss("focal")
    with pytest.raises(ValueError, match="pass the method alone"):
        SegmentationLoss(CalsAlm(4), classes=4)
    for method in ("gamma_net", Calmo(4)):
        classes = {"classes": 4} if isinstance(method, str) else {}
        with pytest.raises(ValueError, match="calls the network itself, a loss has only its logi"):
            SegmentationLoss(method, **classes)
    with pytest.raises(ValueError, match=r"logits must have 3 classes, got shape \(3, 4, 6, 5\)"):
        SegmentationLoss("soft_l1_ace", classes=3)(logits, labels)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\], got 255; drop ignored"):
        SegmentationLoss("nacl", classes=4)(logits, labels)
    one_hot = nn.functional.one_hot(labels.where(labels != VOID, 0), 4).movedim(-1, 1)
    with pytest.raises(ValueError, match=r"pass labels.argmax\(1\) of one-hot labels"):
        SegmentationLoss("focal", classes=4)(logits, one_hot)
