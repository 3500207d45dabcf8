"""Images with a label per pixel."""

import numpy as np
import pytest
import torch

from calibrant import files
from calibrant.data import load
from calibrant.data.images import resized_masks

Image = pytest.importorskip("PIL.Image")


def pair(seed, classes=11, height=6, width=8):
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return image, random.integers(0, classes + 1, (height, width), dtype=np.uint8)


def write_pairs(images, masks, count, seed, classes=11):
    for folder in (images, masks):
        folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        image, mask = pair(seed + i, classes)
        Image.fromarray(image).save(images / f"{i}.png")
        Image.fromarray(mask).save(masks / f"{i}.png")


@pytest.fixture
def camvid(tmp_path):
    base = tmp_path / "CamVid"
    for role, count, seed in (("train", 12, 0), ("val", 3, 50), ("test", 4, 90)):
        write_pairs(base / role, base / f"{role}annot", count, seed)
    return base


@pytest.fixture
def own(tmp_path):
    write_pairs(tmp_path / "train" / "images", tmp_path / "train" / "masks", 20, 0, classes=3)
    return tmp_path


class TestCamvid:
    def test_folders_are_three_splits(self, camvid):
        splits = load("camvid", 0, root=camvid.parent)
        assert (splits.kind, splits.classes, splits.ignore_index) == ("masks", 11, 11)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (12, 3, 4)
        image, mask = pair(92)
        assert np.array_equal(splits.test.inputs[2], image.transpose(2, 0, 1))
        assert np.array_equal(splits.test.labels[2], mask)
        batch = splits.test.batch(torch.tensor([2]))
        assert batch.labels.dtype == torch.int64
        assert batch.inputs.dtype == torch.float32

    def test_the_val_of_the_npz_file_becomes_test(self, tmp_path):
        pairs = [pair(i) for i in range(25)]
        x, y = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
        arrays = {"x_train": x[:20], "y_train": y[:20], "x_val": x[20:], "y_val": y[20:]}
        files.write(tmp_path / "camvid_A_trainval.npz", arrays)
        splits = load("camvid", 0, root=tmp_path, val=0.25)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (15, 5, 5)
        rows = [set(p.rows.tolist()) for p in (splits.train, splits.val, splits.test)]
        assert rows[0] | rows[1] == set(range(20))
        assert rows[2] == set(range(20, 25))
        for i, row in enumerate(splits.train.rows.tolist()):
            assert np.array_equal(splits.train.labels[i], y[row])
        files.write(tmp_path / "camvid_A_trainval.npz", arrays | {"y_train": y[:19]})
        with pytest.raises(ValueError, match="'y_train' must be uint8 masks"):
            load("camvid", 0, root=tmp_path)

    def test_masks_are_resized_with_images_have_meta_splits_and_invalid_labels_raise(self, camvid):
        splits, whole = (load("camvid", 0, root=camvid, size=size) for size in ((3, 4), None))
        assert splits.shape == (3, 3, 4)
        assert splits.train.labels.shape == (12, 3, 4)
        assert {*splits.train.labels.unique().tolist()} <= {*whole.train.labels.unique().tolist()}
        meta = whole.with_meta(0.25, seed=0)
        assert (len(meta.train), len(meta.meta)) == (9, 3)
        Image.fromarray(np.full((6, 8), 12, np.uint8)).save(camvid / "valannot" / "1.png")
        words = r"valannot/1.png: labels must lie in \[0, 10\].*got 12"
        with pytest.raises(ValueError, match=words):
            load("camvid", 0, root=camvid)
        (camvid / "test").rename(camvid / "tests")
        with pytest.raises(ValueError, match="must have images in test/"):
            load("camvid", 0, root=camvid)


def test_masks_are_resized_from_the_middle_of_each_new_pixel():
    mask = torch.arange(16).view(1, 4, 4)
    assert resized_masks(mask, (2, 2)).tolist() == [[[5, 7], [13, 15]]]
    assert resized_masks(mask, (4, 4)) is mask
    up = resized_masks(torch.tensor([[[1, 2]]]), (2, 4))
    assert up.tolist() == [[[1, 1, 2, 2], [1, 1, 2, 2]]]


class TestOwnMasks:
    def test_images_and_masks_are_paired_by_name(self, own):
        splits = load("mask_folder", 0, root=own, classes=["a", "b", "c"], ignore_index=3)
        assert splits.class_names == ("a", "b", "c")
        assert (len(splits.train), len(splits.val), len(splits.test)) == (14, 2, 4)
        names = sorted(str(i) for i in range(20))
        for i, row in enumerate(splits.train.rows.tolist()):
            image, mask = pair(int(names[row]), classes=3)
            assert np.array_equal(splits.train.inputs[i], image.transpose(2, 0, 1))
            assert np.array_equal(splits.train.labels[i], mask)

    def test_palettes_keep_their_class_numbers(self, own):
        colours = Image.fromarray(pair(0, 3)[1]).convert("P")
        colours.putdata(list(pair(0, 3)[1].flatten()))
        colours.putpalette([200, 10, 10, 10, 200, 10, 10, 10, 200, 0, 0, 0])
        before = load("mask_folder", 0, root=own, classes=3, ignore_index=3).fingerprint
        colours.save(own / "train" / "masks" / "0.png")
        assert load("mask_folder", 0, root=own, classes=3, ignore_index=3).fingerprint == before

    def test_missing_classes_colour_masks_unpaired_images_and_equal_names_raise(self, own):
        def failing(words, **options):
            with pytest.raises(ValueError, match=words):
                load("mask_folder", 0, root=own, **options)

        failing("mask_folder needs classes=")
        failing("or be ignore_index=None, got 3", classes=3)
        for path in (own / "train" / "masks").iterdir():
            Image.fromarray(pair(0)[0]).save(path)
        failing("a mask must have one channel, this one is RGB", classes=3, ignore_index=3)
        (own / "train" / "masks" / "7.png").unlink()
        failing(r"unpaired: \['7'\]", classes=3, ignore_index=3)
        Image.fromarray(pair(0)[0]).save(own / "train" / "images" / "3.jpg")
        failing("has two images called '3'", classes=3, ignore_index=3)

    def test_val_and_test_folders_are_used(self, own):
        for role, count in (("val", 3), ("test", 5)):
            write_pairs(own / role / "images", own / role / "masks", count, 70, classes=2)
        splits = load("mask_folder", 0, root=own, classes=3, ignore_index=3)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (20, 3, 5)
