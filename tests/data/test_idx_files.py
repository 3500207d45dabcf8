"""MNIST's idx files: declared sizes are checked before memory is allocated."""

import gzip
import struct

import numpy as np
import pytest

from calibrant import files
from calibrant.data import load

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
NAMES += ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    found = []
    for n in (60, 20):
        found.append(random.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        found.append((np.arange(n) % 10).astype(np.uint8))
    return dict(zip(NAMES, found, strict=True))


def write(folder, arrays, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        content = idx(array)
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)
    return folder


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "raw"])
def test_both_forms_are_read_from_the_usual_places(tmp_path, arrays, name, ending, place):
    folder = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw"}[name]
    write(tmp_path / (folder if place == "raw" else "."), arrays, ending)
    splits = load(name, 0, root=tmp_path)
    assert (len(splits.train), len(splits.val), splits.shape) == (54, 6, (1, 28, 28))
    assert np.array_equal(splits.test.inputs[:, 0], arrays["t10k-images-idx3-ubyte"])
    assert splits.test.labels.tolist() == [i % 10 for i in range(20)]


def test_the_npz_file_gives_the_same_and_debian_has_a_place_of_its_own(
    tmp_path, arrays, monkeypatch
):
    debian, empty = write(tmp_path / "debian", arrays, ".gz"), tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr("calibrant.data.idx.DEBIAN", debian)
    assert load("fashion_mnist", 0, root=empty).class_names[-1] == "Ankle boot"
    with pytest.raises(FileNotFoundError):
        load("mnist", 0, root=empty)
    keys = ("x_train", "y_train", "x_test", "y_test")
    files.write(empty / "mnist.npz", dict(zip(keys, arrays.values(), strict=True)))
    expected = load("mnist", 0, root=debian).fingerprint
    assert load("mnist", 0, root=empty).fingerprint == expected


HUGE = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 2**15, 2**15)
BOMB = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**20, 2**8, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it begins with nothing"),
        (b"\0\0\x08", "it begins with 00 00 08"),
        (b"\0\0\x0d\x03" + bytes(40), "it begins with 00 00 0d 03"),
        (b"\0\0\x08\x01" + bytes(40), "with 3 dimensions"),
        (HUGE, "more than 4.0 GB"),
        (BOMB, "declares 1.0 GB, 16 bytes stored"),
        (idx(np.zeros((2, 3, 3), np.uint8))[:-1], "18 bytes, but has 17"),
        (idx(np.zeros((2, 3, 3), np.uint8)) + b"x", "18 bytes, but has more than 18"),
        (idx(np.zeros((0, 3, 3), np.uint8)), "0 bytes, but has 0"),
    ],
)
def test_damaged_files_and_false_sizes_raise(tmp_path, arrays, content, words):
    folder = write(tmp_path, arrays)
    (folder / NAMES[0]).write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        load("mnist", 0, root=folder)
    assert NAMES[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing"),
        (b"no gzip", "not a complete gzip file"),
        (gzip.compress(idx(np.ones((9, 9, 9), "u1")))[:-9], "not a complete gzip file"),
        (gzip.compress(BOMB + bytes(10**6)), r"declares 1\.0 GB"),
    ],
    ids=["empty", "other", "cut", "bomb"],
)
def test_damaged_gzip_and_bombs_raise(tmp_path, arrays, content, words):
    folder = write(tmp_path, arrays, ".gz")
    (folder / f"{NAMES[0]}.gz").write_bytes(content)
    with pytest.raises(ValueError, match=f"{NAMES[0]}.gz.*{words}"):
        load("mnist", 0, root=folder)


def test_labels_must_match_the_images(tmp_path, arrays):
    folder = write(tmp_path, arrays)
    (folder / NAMES[1]).write_bytes(idx(np.zeros(59, np.uint8)))
    with pytest.raises(ValueError, match="'labels' must be 60 integers"):
        load("mnist", 0, root=folder)
    (folder / NAMES[1]).write_bytes(idx(np.full(60, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"'labels' must lie in \[0, 9\], got 10"):
        load("mnist", 0, root=folder)
    (folder / NAMES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=NAMES[1]):
        load("mnist", 0, root=folder)
