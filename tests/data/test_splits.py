"""Splits: disjoint, reproducible, stratified, and only train is modified."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.data import Scale, Split, Splits, images, load, tail_groups
from calibrant.data.images import scale_of
from calibrant.data.strata import Purpose, stratified_order, tail_sizes

EMBEDDED = ("digits", "blobs", "teacher")


def rows(splits):
    return [set(part.rows.tolist()) for part in (splits.train, splits.val, splits.test)]


@pytest.mark.parametrize("name", EMBEDDED)
class TestEveryEmbeddedSet:
    def test_splits_are_disjoint_and_determined_by_the_seed(self, name):
        one, two = load(name, 0, val=0.2), load(name, 1, val=0.2)
        (train, val, test), (other_train, other_val, _) = rows(one), rows(two)
        assert len(train | val | test) == len(train) + len(val) + len(test)
        assert min(train | val) == 0
        assert train != other_train
        assert train | val == other_train | other_val
        assert torch.equal(one.test.inputs, two.test.inputs)
        assert one.fingerprint == load(name, 0, val=0.2).fingerprint != two.fingerprint
        counts = [torch.bincount(p.labels, minlength=one.classes) for p in (one.train, one.val)]
        assert ((counts[1] - 0.2 * (counts[0] + counts[1])).abs() <= 1).all()

    def test_a_limit_gives_stratified_subsets_and_the_same_test_for_every_seed(self, name):
        small, large, whole = (load(name, 0, limit=limit) for limit in (50, 200, 10**6))
        for few, some, all_of_it in zip(rows(small), rows(large), rows(whole), strict=True):
            assert few < some < all_of_it
        assert len(small.train) + len(small.val) == len(small.test) == 50
        expected = torch.bincount(whole.test.labels) * (200 / len(whole.test))
        assert ((torch.bincount(large.test.labels) - expected).abs() <= 1).all()
        part = load(name, 5, limit=50)
        assert torch.equal(small.test.rows, part.test.rows)
        # Inputs belong to their labels and rows.
        held = {int(row): i for i, row in enumerate(whole.train.rows)}
        for i, row in enumerate(part.train.rows.tolist()):
            if row in held:
                assert torch.equal(part.train.inputs[i], whole.train.inputs[held[row]])
                assert part.train.labels[i] == whole.train.labels[held[row]]

    def test_noise_replaces_the_requested_fraction_of_train_labels_only(self, name):
        clean, noisy = load(name, 0), load(name, 0, label_noise=0.3)
        changed = clean.train.labels != noisy.train.labels
        assert int(changed.sum()) == round(0.3 * len(clean.train))
        assert int(noisy.train.labels.max()) < clean.classes
        assert torch.equal(clean.train.inputs, noisy.train.inputs)
        assert torch.equal(clean.val.labels, noisy.val.labels)
        assert torch.equal(clean.test.labels, noisy.test.labels)

    def test_a_long_tail_affects_train_only(self, name):
        whole, tailed = load(name, 0), load(name, 0, long_tail=10)
        counts = torch.bincount(tailed.train.labels, minlength=whole.classes)
        expected = tail_sizes(torch.bincount(whole.train.labels).numpy(), 10)
        assert counts.tolist() == expected.tolist()
        assert torch.equal(whole.val.rows, tailed.val.rows)
        assert torch.equal(whole.test.rows, tailed.test.rows)
        assert set(tailed.train.rows.tolist()) < set(whole.train.rows.tolist())

    def test_meta_is_a_stratified_part_of_train(self, name):
        splits = load(name, 0)
        cut = splits.with_meta(0.25, seed=1)
        both = cut.train.rows.tolist() + cut.meta.rows.tolist()
        assert sorted(both) == splits.train.rows.tolist()
        assert len(cut.meta) == round(0.25 * len(splits.train))
        total = torch.bincount(splits.train.labels)
        assert ((torch.bincount(cut.meta.labels) - 0.25 * total).abs() <= 1).all()
        assert cut.val is splits.val
        assert cut.test is splits.test
        other = splits.with_meta(0.25, seed=2)
        assert cut.fingerprint not in (splits.fingerprint, other.fingerprint)


def test_tail_sizes_by_hand():
    # 500 * 100^(-c / 4): 500, 158.1, 50, 15.8, 5
    assert tail_sizes(np.full(5, 500), 100).tolist() == [500, 158, 50, 15, 5]
    # 500 * 32^(-2 / 5) is 125, though the power rounds it down to less.
    assert tail_sizes(np.full(6, 500), 32).tolist() == [500, 250, 125, 62, 31, 15]
    # Small classes keep their examples, at least one each.
    assert tail_sizes(np.array([10, 2, 10]), 1000).tolist() == [10, 1, 1]
    assert tail_sizes(np.array([10, 2, 10]), 1).tolist() == [10, 2, 10]
    # A longer tail is a subset.
    short, long = (set(load("blobs", 0, long_tail=t).train.rows.tolist()) for t in (5, 50))
    assert long < short


def test_tail_groups_depend_on_the_number_of_examples():
    labels = torch.tensor([0] * 101 + [1] * 100 + [2] * 20 + [3] * 19)
    assert tail_groups(labels, 5) == ("head", "medium", "medium", "tail", "tail")
    with pytest.raises(ValueError, match="below classes=2"):
        tail_groups(labels, 2)
    with pytest.raises(ValueError, match="few must lie"):
        tail_groups(labels, 4, many=10, few=20)


def test_noise_is_uniform_over_other_classes_and_determined_by_the_seed():
    clean, noisy = (load("blobs", 0, n=40_000, label_noise=f).train.labels for f in (0.0, 0.5))
    table = torch.bincount(clean * 4 + noisy, minlength=16).view(4, 4).float()
    away = table - table.diag().diag()
    share = away / away.sum(1, keepdim=True)
    assert (share[~torch.eye(4, dtype=torch.bool)] - 1 / 3).abs().max() < 0.03
    labels = [load("blobs", seed, label_noise=0.2, limit=100).train.labels for seed in (0, 0, 1)]
    assert torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[0], labels[2])


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 10**6),
)
def test_every_prefix_of_a_stratified_order_is_stratified(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    order = stratified_order(labels, seed, Purpose.VAL)
    assert sorted(order) == list(range(len(labels)))
    for end in range(1, len(labels) + 1):
        found = np.bincount(labels[order[:end]], minlength=len(counts))
        # Half an example for rounding in each class, and half of their sum.
        assert (np.abs(found - np.array(counts) * end / len(labels)) <= 0.5 + len(counts) / 2).all()


def test_purposes_have_different_random_numbers_and_equal_classes_alternate():
    labels = np.zeros(100, dtype=np.int64)
    orders = {tuple(stratified_order(labels, 0, purpose)) for purpose in Purpose}
    assert len(orders) == len(Purpose)
    labels = np.arange(5).repeat(20)
    order = stratified_order(labels, 3, Purpose.VAL)
    assert (np.sort(labels[order].reshape(20, 5), 1) == np.arange(5)).all()


def test_images_are_normalised_by_the_scale_of_train_in_copies():
    splits = load("digits", 0)
    split, scale = splits.train, splits.train.scale
    inputs = split.inputs.double() / 255
    assert scale.mean == pytest.approx([float(inputs.mean())], abs=1e-12)
    assert scale.std == pytest.approx([float(inputs.std(correction=0))], abs=1e-12)
    assert scale == splits.val.scale == splits.test.scale
    index = torch.tensor([5, 0, 5])
    batch = split.batch(index)
    expected = (inputs[index] - scale.mean[0]) / scale.std[0]
    assert batch.inputs.dtype == torch.float32
    torch.testing.assert_close(batch.inputs.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(batch.labels, split.labels[index])
    assert torch.equal(batch.index, index)
    for name in ("digits", "teacher"):
        split = load(name, 0).train
        before = split.inputs.clone()
        split.batch(torch.arange(4)).inputs.mul_(2)
        assert torch.equal(split.inputs, before)


def test_channels_have_their_own_scale_and_constant_ones_none():
    images = torch.zeros(2, 2, 1, 1, dtype=torch.uint8)
    images[:, 1] = 255
    scaled = Scale((0.0, 0.5), (1.0, 0.25))(images)
    assert scaled[:, :, 0, 0].tolist() == [[0, 2], [0, 2]]
    assert scale_of(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8)) == Scale((0.2,), (1.0,))
    assert load("blobs", 0).train.scale is None


def test_the_fingerprint_depends_on_every_tensor_and_the_name():
    def made(**change):
        part = {
            "inputs": torch.zeros(3, 2),
            "labels": torch.tensor([0, 1, 1]),
            "rows": torch.arange(3),
            "posterior": torch.full((3, 2), 0.5),
        }
        name = change.pop("name", "a")
        split = Split(**{**part, **change})
        return Splits(name, "vectors", split, Split(**part), Split(**part)).fingerprint

    prints = [
        made(),
        made(name="b"),
        made(inputs=torch.ones(3, 2)),
        made(labels=torch.tensor([1, 1, 1])),
        made(rows=torch.arange(1, 4)),
        made(posterior=None),
        made(scale=Scale((0.0,), (1.0,))),
    ]
    assert len(set(prints)) == len(prints)
    assert made() == prints[0]


def test_classes_without_names_are_counted():
    part = Split(torch.zeros(2, 1, 2, 2), torch.full((2, 2, 2), 3).short(), torch.arange(2))
    other = Split(part.inputs, torch.full((2, 2, 2), 7).short(), torch.arange(2))
    assert Splits("x", "masks", part, part, other).classes == 8
    assert Splits("x", "masks", part, part, other, ignore_index=7).classes == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"val": 0.0}, "val must lie strictly between 0 and 1, got 0.0"),
        ({"val": 1}, "val must lie strictly"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": 1}, "has no examples; raise limit"),
        ({"long_tail": 0.5}, "long_tail must be at least 1"),
        ({"long_tail": float("nan")}, "long_tail must be at least 1"),
        ({"label_noise": 1.0}, r"label_noise must lie in \[0, 1\), got 1.0"),
        ({"label_noise": "worse"}, "digits has no label_noise 'worse'"),
        ({"size": 0}, "size must be a number or"),
        ({"size": (8, 8, 8)}, "size must be a number or"),
    ],
)
def test_invalid_options_raise_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        load("digits", 0, **options)
    assert "\n" not in str(caught.value)


def test_invalid_and_second_meta_splits_raise():
    for fraction in (0, 1, -1, float("nan"), 1e-9):
        with pytest.raises(ValueError, match=r"strictly between 0 and 1|leaves a split empty"):
            load("blobs", 0).with_meta(fraction, seed=0)
    with pytest.raises(ValueError, match="already"):
        load("blobs", 0).with_meta(0.1, seed=0).with_meta(0.1, seed=0)


def test_resized_images_keep_their_mean_and_chunks_do_not_matter(monkeypatch):
    small, whole = load("digits", 0, size=4), load("digits", 0)
    assert small.shape == (1, 4, 4)
    assert small.train.inputs.dtype == torch.uint8
    means = [s.train.inputs.double().mean((1, 2, 3)) for s in (small, whole)]
    assert (means[0] - means[1]).abs().max() < 25
    assert (means[0] - means[1]).abs().mean() < 5
    assert load("digits", 0, size=[6, 10]).shape == (1, 6, 10)
    assert load("digits", 0, size=8).fingerprint == whole.fingerprint
    monkeypatch.setattr(images, "CHUNK", 7)
    assert load("digits", 0, size=4).fingerprint == small.fingerprint
