"""Image folders: the user's own, and Tiny ImageNet."""

import struct
import sys
import zlib

import numpy as np
import pytest
import torch

from calibrant.data import load
from calibrant.study.spec import parse
from calibrant.training.building import built

Image = pytest.importorskip("PIL.Image")


def picture(seed, height=6, width=6):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_images(folder, count, seed=0, ending="png", **shape):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.fromarray(picture(seed + i, **shape)).save(folder / f"{i:03}.{ending}")


@pytest.fixture
def own(tmp_path):
    for i, name in enumerate(("cat", "dog", "emu")):
        write_images(tmp_path / "train" / name, 20, seed=100 * i)
    return tmp_path


class TestOwnImages:
    def test_a_study_names_their_folder(self, own):
        spec = {"name": "birds", "dataset": [{"name": "image_folder", "root": str(own)}]}
        spec |= {"model": [{"name": "small_cnn"}], "method": [{"name": "cross_entropy"}]}
        cell = parse(spec | {"optimizer": [{"name": "sgd"}]}).cells()[0]
        assert built(**cell.parts(), seed=0).splits.class_names == ("cat", "dog", "emu")
        spec["dataset"] = [{"name": "digits", "root": str(own)}]
        with pytest.raises(ValueError, match="root"):
            parse(spec)

    def test_classes_are_the_folders_and_a_fifth_becomes_test(self, own):
        splits = load("image_folder", 0, root=own)
        assert splits.class_names == ("cat", "dog", "emu")
        assert (len(splits.train), len(splits.val), len(splits.test)) == (43, 5, 12)
        assert splits.test.labels.bincount().tolist() == [4, 4, 4]
        for part in (splits.train, splits.val, splits.test):
            for image, label, row in zip(part.inputs, part.labels, part.rows, strict=True):
                assert int(label) == int(row) // 20
                source = picture(100 * int(label) + int(row) % 20)
                assert np.array_equal(image, source.transpose(2, 0, 1))

    def test_val_alone_becomes_test_and_three_folders_are_three_splits(self, own):
        write_images(own / "val" / "emu", 3)
        splits = load("image_folder", 0, root=own)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (54, 6, 3)
        write_images(own / "test" / "emu", 4)
        splits = load("image_folder", 0, root=own)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (60, 3, 4)
        assert splits.test.labels.tolist() == [2] * 4
        with pytest.raises(ValueError, match=r"has its own val split; remove val=0\.2"):
            load("image_folder", 0, root=own, val=0.2)

    def test_only_selected_images_are_decoded(self, own):
        kept = load("image_folder", 0, root=own, limit=6)
        names = ("cat", "dog", "emu")
        rows = {int(row) for part in (kept.train, kept.val, kept.test) for row in part.rows}
        for row in set(range(60)) - rows:
            (own / "train" / names[row // 20] / f"{row % 20:03}.png").write_bytes(b"broken")
        assert load("image_folder", 0, root=own, limit=6).fingerprint == kept.fingerprint

    def test_images_of_different_sizes_need_a_size(self, own):
        write_images(own / "train" / "dog", 1, height=9, width=7)
        with pytest.raises(ValueError, match=r"000.png is 7 x 9, .* 6 x 6; pass size="):
            load("image_folder", 0, root=own)
        assert load("image_folder", 0, root=own, size=(4, 5)).shape == (3, 4, 5)

    def test_grey_images_and_palettes_become_rgb_and_other_files_are_ignored(self, own):
        place = own / "train" / "cat"
        Image.fromarray(picture(0)[:, :, 0]).save(place / "000.png")
        Image.fromarray(picture(1)).quantize(16).save(place / "001.png")
        (place / "notes.txt").write_text("not an image")
        splits = load("image_folder", 0, root=own)
        assert splits.shape == (3, 6, 6)
        assert len(splits.train) + len(splits.val) + len(splits.test) == 60

    def test_unknown_classes_one_class_and_no_images_raise(self, own):
        for made, root, words in (
            ("test/fox", own, r"classes that train does not have: \['fox'\]"),
            ("empty/train/a", own / "empty", "must have a folder for each class"),
            ("empty/train/b", own / "empty", "has no images"),
        ):
            (own / made).mkdir(parents=True)
            with pytest.raises(ValueError, match=words):
                load("image_folder", 0, root=root)


def declaring(side):
    """A png file of a few bytes that declares many pixels."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot identify"),
        (b"no image", "cannot identify"),
        (b"\x89PNG\r\n\x1a\n", "cannot identify"),
        (declaring(60_000), "exceeds limit"),
        (declaring(11_000), "it declares 11000 x 11000 pixels"),
    ],
    ids=["empty", "text", "head only", "huge", "large"],
)
def test_damaged_images_and_those_of_too_many_pixels_raise_in_one_line(own, content, words):
    for path in (own / "train" / "dog").iterdir():
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"dog/0..\.png is not a readable image: .*{words}") as e:
        load("image_folder", 0, root=own, size=4)
    assert "\n" not in str(e.value)


def test_too_many_bytes_and_a_missing_pillow_raise(own, monkeypatch):
    monkeypatch.setattr("calibrant.data.images.MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes; pass a smaller size"):
        load("image_folder", 0, root=own)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="reading image files needs PIL"):
        load("image_folder", 0, root=own)


@pytest.fixture
def tiny(tmp_path):
    base = tmp_path / "tiny-imagenet-200"
    for i, name in enumerate(("n01", "n02")):
        write_images(base / "train" / name / "images", 10, seed=50 * i, ending="JPEG")
    write_images(base / "val" / "images", 4, seed=200, ending="JPEG")
    lines = [f"{i:03}.JPEG\tn0{i % 2 + 1}\t0\t0\t9\t9\n" for i in range(4)]
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    return base


class TestTinyImagenet:
    def test_val_becomes_test_with_the_labels_of_its_list(self, tiny):
        splits = load("tiny_imagenet", 0, root=tiny.parent, val=0.2)
        assert (len(splits.train), len(splits.val), len(splits.test)) == (16, 4, 4)
        assert splits.test.labels.tolist() == [0, 1, 0, 1]
        assert splits.train.labels.bincount().tolist() == [8, 8]
        with Image.open(tiny / "val" / "images" / "002.JPEG") as image:
            assert np.array_equal(splits.test.inputs[2].movedim(0, 2), np.array(image))
        same = load("tiny_imagenet", 0, root=tiny, val=0.2)
        assert torch.equal(same.train.inputs, splits.train.inputs)

    @pytest.mark.parametrize(
        "line", ["000.JPEG\tn09\t0\n", "../../secret.JPEG\tn01\t0\n", "000.JPEG\n", "\n"]
    )
    def test_a_list_with_an_invalid_line_raises(self, tiny, line):
        (tiny / "val" / "val_annotations.txt").write_text(line)
        with pytest.raises(ValueError, match="line 1 must be an image and a class"):
            load("tiny_imagenet", 0, root=tiny)

    def test_missing_images_and_empty_lists_raise(self, tiny):
        (tiny / "val" / "images" / "001.JPEG").unlink()
        with pytest.raises(FileNotFoundError, match=r"no such file: .*001\.JPEG"):
            load("tiny_imagenet", 0, root=tiny)
        (tiny / "val" / "val_annotations.txt").write_text("")
        with pytest.raises(ValueError, match="and 0 in val/"):
            load("tiny_imagenet", 0, root=tiny)
