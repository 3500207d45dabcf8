"""Losses that know the image and the neighbours of a pixel, against loops and against MONAI."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from calibrant.losses import cross_entropy, hard_l1_ace, nacl, neighbour_shares, soft_l1_ace
from calibrant.shapes import flatten_dense

VOID = 255


def masks(n=3, k=4, size=7, *, seed=0, void=False):
    """Dense logits (n, k, h, w) and labels, with regions rather than noise."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, size, size + 2, generator=draw, dtype=torch.float64)
    smooth = torch.nn.functional.avg_pool2d(logits, 3, 1, 1)
    labels = (smooth + 0.5 * torch.randn(logits.shape, generator=draw)).argmax(1)
    if void:
        labels[0, :3] = VOID
        labels[1, 2, 3] = VOID
    return logits, labels


def memberships(p, bins, soft):
    """Bins and weights of one probability."""
    if not soft:
        return [(b, 1.0) for b in range(bins) if b / bins < p <= (b + 1) / bins or b == p == 0]
    found = []
    for b in range(bins):
        weight = max(0.0, 1 - abs(p * bins - b - 0.5))
        outside = (b == 0 and p < 0.5 / bins) or (b == bins - 1 and p > 1 - 0.5 / bins)
        found.append((b, 1.0 if outside else weight))
    return found


def by_loop(logits, labels, images, *, bins, soft, background):
    probs = logits.softmax(1)
    means = []
    for image in images.unique().tolist():
        rows = (images == image).nonzero()[:, 0].tolist()
        classes = []
        for j in range(0 if background else 1, logits.shape[1]):
            sums = [[0.0, 0.0, 0.0] for _ in range(bins)]
            for row in rows:
                p = float(probs[row, j])
                for b, weight in memberships(p, bins, soft):
                    sums[b][0] += weight
                    sums[b][1] += weight * p
                    sums[b][2] += weight * float(labels[row] == j)
            least = 0.01 if soft else 0.5
            gaps = [abs(p / w - y / w) for w, p, y in sums if w >= least]
            classes.append(sum(gaps) / len(gaps))
        means.append(sum(classes) / len(classes))
    return sum(means) / len(means)


@pytest.mark.parametrize("soft", [False, True])
def test_the_average_error_is_that_of_a_loop(soft):
    logits, labels, images = flatten_dense(*masks(void=True), ignore_index=VOID)
    loss = soft_l1_ace if soft else hard_l1_ace
    for bins, background in ((20, True), (5, False), (1, True)):
        found = loss(logits, labels, images, bins=bins, background=background)
        expected = by_loop(logits, labels, images, bins=bins, soft=soft, background=background)
        assert_close(found.item(), expected, rtol=1e-12, atol=0)
    # The names of images do not matter, and by default there is one.
    assert_close(loss(logits, labels, 7 * images - 3), loss(logits, labels, images))
    alone = by_loop(logits, labels, 0 * images, bins=20, soft=soft, background=True)
    assert_close(loss(logits, labels).item(), alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [hard_l1_ace, soft_l1_ace, nacl])
def test_the_gradient_with_images_and_neighbours_matches_finite_differences(loss):
    logits, labels = masks(2, 3, 3)
    shares = neighbour_shares(labels, 3).double()
    rows, flat, images = flatten_dense(logits, labels, ignore_index=None)
    more = flatten_dense(shares, labels, ignore_index=None)[0] if loss is nacl else images
    weights = torch.rand(len(flat) if loss is nacl else 1, dtype=torch.float64)
    rows.requires_grad_()
    assert gradcheck(lambda z: (loss(z, flat, more) * weights).sum(), rows, eps=1e-7, atol=1e-5)


def test_hard_bins_by_hand():
    # Probabilities of class 1: .9 and .8 in one bin of width 1/2, .3 in the other; labels 1, 0, 0.
    logits = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]]).double().log()
    labels = torch.tensor([1, 0, 0])
    # Upper bin: mean .85 against 1/2; lower bin: .3 against 0. Class 0 mirrors class 1.
    assert_close(hard_l1_ace(logits, labels, bins=2).item(), (0.35 + 0.3) / 2)


def test_both_errors_vanish_as_calibrated_pixels_grow():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(200_000, 3, generator=draw)
    labels = logits.softmax(1).multinomial(1, generator=draw)[:, 0]
    for loss in (hard_l1_ace, soft_l1_ace):
        assert loss(logits, labels, bins=10) < 0.02
        assert loss(3 * logits, labels, bins=10) > 0.1


def shares_by_loop(labels, k, size, form):
    n, h, w = labels.shape
    found = torch.zeros(n, k, h, w)
    for i, y, x in torch.cartesian_prod(*map(torch.arange, labels.shape)).tolist():
        around = [
            int(labels[i, v, u])
            for v in range(max(0, y - size // 2), min(h, y + size // 2 + 1))
            for u in range(max(0, x - size // 2), min(w, x + size // 2 + 1))
            if labels[i, v, u] != VOID
        ]
        for label in around:
            found[i, label, y, x] += 1 / (size**2 if form == "public_code" else len(around))
    return found


@pytest.mark.parametrize("form", ["paper", "public_code"])
def test_shares_of_neighbours_are_those_of_a_loop(form):
    _, labels = masks(void=True)
    for size in (1, 3, 5):
        found = neighbour_shares(labels, 4, size=size, ignore_index=VOID, form=form)
        assert_close(found, shares_by_loop(labels, 4, size, form))
    tokens = neighbour_shares(labels[:, 0], 4, ignore_index=VOID)
    assert_close(tokens, neighbour_shares(labels[:, :1], 4, ignore_index=VOID)[:, :, 0])
    volume = neighbour_shares(labels[:, None], 4, ignore_index=VOID)
    assert_close(volume[:, :, 0], neighbour_shares(labels, 4, ignore_index=VOID))


def test_shares_refuse_even_sizes_and_labels_of_images(as_a_user_runs_it):
    with pytest.raises(ValueError, match="size must be odd, got 4"):
        neighbour_shares(torch.zeros(1, 3, 3, dtype=torch.long), 2, size=4)
    with pytest.raises(ValueError, match="labels must be masks"):
        neighbour_shares(torch.zeros(3, dtype=torch.long), 2)


def test_without_neighbours_the_label_is_its_own():
    rows, flat, _ = flatten_dense(*masks(), ignore_index=None)
    own = torch.nn.functional.one_hot(flat, 4)
    expected = cross_entropy(rows, flat) + 0.1 * (own - rows).abs().mean(1)
    assert_close(nacl(rows, flat), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("distance", ["l1", "l2"])
def test_the_form_of_the_public_code_is_that_of_monai(distance):
    monai = pytest.importorskip("monai.losses")
    logits, labels = (each.float() for each in masks(size=12))
    labels = labels.long()
    for size in (3, 5):
        theirs = monai.NACLLoss(4, 2, kernel_size=size, distance_type=distance, alpha=0.3)
        shares = neighbour_shares(labels, 4, size=size, form="public_code")
        rows, flat, _ = flatten_dense(logits, labels, ignore_index=None)
        near, _, _ = flatten_dense(shares, labels, ignore_index=None)
        ours = nacl(rows, flat, near, alpha=0.3, distance=distance).mean()
        assert_close(ours, theirs(logits, labels), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hard_bins_are_those_of_monai():
    calibration = pytest.importorskip("monai.metrics.calibration")
    logits, labels = masks(size=15)
    one_hot = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).float()
    for bins, background in ((20, True), (10, False)):
        theirs = calibration.CalibrationErrorMetric(
            num_bins=bins, include_background=background, calibration_reduction="average"
        )
        theirs(y_pred=logits.softmax(1).float(), y=one_hot)
        ours = hard_l1_ace(
            *flatten_dense(logits, labels, ignore_index=None), bins=bins, background=background
        )
        assert_close(float(ours), float(theirs.aggregate()), rtol=1e-5, atol=1e-6)
