"""CIFAR from the files of its authors: pickles, read without running their code."""

import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from calibrant import files
from calibrant.data import load
from calibrant.data.pickled import unpickled

TRAIN = [f"data_batch_{i}" for i in range(1, 6)]


def batch(seed, n=20, classes=10, key="labels", spelt=bytes):
    random = np.random.default_rng(seed)
    name = (lambda text: text.encode()) if spelt is bytes else str
    return {
        name("data"): random.integers(0, 256, (n, 3072), dtype=np.uint8),
        name(key): (np.arange(n) % classes).tolist(),
        name("filenames"): [f"{i}.png".encode() for i in range(n)],
        name("batch_label"): b"training batch",
    }


def write_cifar10(folder, protocol=2, spelt=bytes):
    folder.mkdir(exist_ok=True)
    for i, name in enumerate([*TRAIN, "test_batch"]):
        (folder / name).write_bytes(pickle.dumps(batch(i, spelt=spelt), protocol=protocol))
    return folder


def write_cifar100(folder):
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(("train", "test")):
        content = batch(i, 200, 100, "fine_labels")
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {b"fine_label_names": [f"thing {i}".encode() for i in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("spelt", [bytes, str])
def test_batches_of_every_pickle_protocol_are_read(tmp_path, protocol, spelt):
    folder = write_cifar10(tmp_path / "cifar-10-batches-py", protocol, spelt)
    # The folder itself may be the root.
    splits = load("cifar10", 0, root=tmp_path if protocol else folder)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (90, 10, 20)
    assert splits.class_names[3] == "cat"
    source = np.concatenate([batch(i)[b"data"] for i in range(6)]).reshape(-1, 3, 32, 32)
    assert np.array_equal(splits.test.inputs, source[100:])
    assert np.array_equal(splits.train.inputs, source[splits.train.rows])


def test_the_strings_of_python_2_are_read(tmp_path):
    """As in the authors' files: an array whose bytes are a string of Python 2."""
    raw = bytes(range(256)) * 12
    content = b"".join(
        [
            b"\x80\x02}q\x00(U\x04dataq\x01",
            b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R",
            b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb",
            b"U\x06labelsq\x04]q\x05K\x07au.",
        ]
    )
    held = unpickled(tmp_path / "x", content)
    assert held[b"data"].tobytes() == raw
    assert held[b"data"].shape == (1, 3072)
    assert held[b"labels"] == [7]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_archive_is_read_without_unpacking(tmp_path, name):
    place = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    archive = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}[name]
    folder = {"cifar10": write_cifar10, "cifar100": write_cifar100}[name](tmp_path / place)
    expected = load(name, 0, root=tmp_path).fingerprint
    other = tmp_path / "other"
    other.mkdir()
    with tarfile.open(other / archive, "w:gz") as tar:
        tar.add(folder, arcname=place)
    assert load(name, 0, root=other).fingerprint == expected
    whole = (other / archive).read_bytes()
    (other / archive).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a complete tar archive"):
        load(name, 0, root=other)
    with tarfile.open(other / archive, "w:gz") as tar:
        tar.add(folder / sorted(os.listdir(folder))[0], arcname=f"{place}/nothing")
    with pytest.raises(ValueError, match="has no cifar-10"):
        load(name, 0, root=other)


def test_cifar100_has_fine_labels_and_their_names(tmp_path):
    folder = write_cifar100(tmp_path / "cifar-100-python")
    splits = load("cifar100", 0, root=tmp_path)
    assert (splits.classes, splits.class_names[42]) == (100, "thing 42")
    assert splits.test.labels.tolist() == [i % 100 for i in range(200)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a"] * 100}))
    with pytest.raises(ValueError, match="100 different names"):
        load("cifar100", 0, root=tmp_path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def untrusted(tmp_path):
    """Untrusted contents, and a part of the error message."""
    large = b"\x80\x02cnumpy\nndarray\n(J\x00\x00\x00\x7ftR."
    changed = b"\x80\x02cnumpy\ndtype\nN}U\x0c__defaults__K\x01s\x86b."
    objects = pickle.dumps({b"data": np.array([[1, "x"]], dtype=object)}, protocol=2)
    wide = pickle.dumps({b"data": np.zeros((1, 3072))}, protocol=2)
    content = pickle.dumps(batch(0, n=2), protocol=2)
    more = content.replace(b"K\x02M\x00\x0c\x86", b"K\x09M\x00\x0c\x86")
    return {
        "more than its bytes": (more, r"declares \(9, 3072\), but has 6144 bytes"),
        "a call": (pickle.dumps({b"data": Evil(tmp_path / "made")}), "mkdir, which is not allowed"),
        "eval": (b"c__builtin__\neval\n(S'1'\ntR.", "not allowed"),
        "a nested name": (b"cnumpy\n_core.multiarray.os.system\n(S'ls'\ntR.", "not allowed"),
        "numpy with a size": (large, "not a readable pickle"),
        "a changed function": (changed, "tries to change"),
        "objects": (objects, "only arrays of uint8"),
        "other numbers": (wide, "only arrays of uint8"),
        "a huge memo": (b"\x80\x02K\x01r\xff\xff\xff\x7f.", "object number"),
        "a huge string": (b"\x80\x04\x8e" + struct.pack("<Q", 2**50) + b"x.", "not a readable"),
        "empty": (b"", "not a readable pickle"),
        "half": (pickle.dumps(batch(0))[:1000], "not a readable pickle"),
        "no dict": (pickle.dumps([1, 2]), "must hold a dict, got list"),
        "no data": (pickle.dumps({b"labels": [1]}), "'data' must be uint8"),
        "another shape": (
            pickle.dumps({b"data": np.zeros((2, 100), np.uint8), b"labels": [0, 1]}),
            "'data' must be uint8",
        ),
        "fewer labels": (pickle.dumps(batch(0) | {b"labels": [1]}), "must be 20 integers"),
        "wrong labels": (pickle.dumps(batch(0) | {b"labels": [10] * 20}), r"in \[0, 9\], got 10"),
        "huge labels": (pickle.dumps(batch(0) | {b"labels": [2**70] * 20}), "must lie in"),
        "no labels": (pickle.dumps(batch(0) | {b"labels": b"0123"}), "must be a list"),
        "extension": (b"\x80\x02\x82\x05.", "not a readable pickle"),
    }


@pytest.mark.parametrize("kind", untrusted(Path("/nowhere")))
def test_untrusted_and_damaged_batches_raise_in_one_line(tmp_path, kind):
    folder = write_cifar10(tmp_path / "cifar-10-batches-py")
    content, words = untrusted(tmp_path)[kind]
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        load("cifar10", 0, root=tmp_path)
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_a_missing_batch_and_a_huge_one_are_named(tmp_path, monkeypatch):
    folder = write_cifar10(tmp_path / "cifar-10-batches-py")
    monkeypatch.setattr("calibrant.data.cifar.MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"data_batch_1 has .* more than 1000 bytes"):
        load("cifar10", 0, root=tmp_path)
    monkeypatch.undo()
    (folder / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file: .*data_batch_4"):
        load("cifar10", 0, root=tmp_path)


@pytest.fixture
def npz(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        "x_train": random.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8),
        "y_train": (np.arange(60) % 10).astype(np.uint8),
        "x_test": random.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8),
        "y_test": (np.arange(30) % 10).astype(np.uint8),
        "human_counts_test": random.integers(1, 9, (30, 10), dtype=np.uint8),
    }
    noisy = {
        "labels3": random.integers(0, 10, (60, 3), dtype=np.uint8),
        "worse": random.integers(0, 10, 60, dtype=np.uint8),
        "aggregate": random.integers(0, 10, 60, dtype=np.uint8),
        "clean": arrays["y_train"],
    }
    files.write(tmp_path / "cifar10_A.npz", arrays)
    files.write(tmp_path / "cifar10n_A.npz", noisy)
    return tmp_path, arrays, noisy


class TestHumanLabels:
    def test_label_frequencies_are_the_posterior_of_test_even_next_to_the_batches(self, npz):
        folder, arrays, _ = npz
        splits = load("cifar10", 0, root=folder)
        assert np.array_equal(splits.test.inputs, arrays["x_test"].transpose(0, 3, 1, 2))
        assert splits.test.posterior is None
        write_cifar10(folder / "cifar-10-batches-py")
        assert len(load("cifar10", 0, root=folder).test) == 20
        splits = load("cifar10", 0, root=folder, human=True, limit=25)
        assert len(splits.test) == 25
        counts = arrays["human_counts_test"].astype(float)[splits.test.rows - 60]
        np.testing.assert_allclose(splits.test.posterior, counts / counts.sum(1, keepdims=True))
        assert splits.train.posterior is None

    @pytest.mark.parametrize("name", ["worse", "aggregate", "random1", "random2", "random3"])
    def test_train_has_the_requested_labels_and_val_is_clean(self, npz, name):
        folder, arrays, noisy = npz
        splits = load("cifar10", 1, root=folder, label_noise=name)
        column = noisy["labels3"][:, int(name[-1]) - 1] if name[:6] == "random" else noisy[name]
        assert np.array_equal(splits.train.labels, column[splits.train.rows])
        assert np.array_equal(splits.val.labels, arrays["y_train"][splits.val.rows])

    def test_unknown_names_and_mismatching_files_raise(self, npz):
        folder, _, noisy = npz
        with pytest.raises(ValueError, match=r"did you mean worse"):
            load("cifar10", 0, root=folder, label_noise="worst")
        files.write(folder / "cifar10n_A.npz", noisy | {"clean": noisy["worse"]})
        with pytest.raises(ValueError, match="is for other images"):
            load("cifar10", 0, root=folder, label_noise="worse")
        (folder / "cifar10n_A.npz").unlink()
        with pytest.raises(FileNotFoundError, match="CIFAR-10N"):
            load("cifar10", 0, root=folder, label_noise="worse")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"x_train": np.zeros((60, 32, 32, 3))}, "'x_train' must be uint8 images"),
            ({"x_train": np.zeros((60, 32), np.uint8)}, "'x_train' must be uint8 images"),
            ({"y_train": np.zeros(59, np.uint8)}, "'y_train' must be 60 integers"),
            ({"y_test": np.full(30, 10, np.uint8)}, r"'y_test' must lie in \[0, 9\], got 10"),
            ({"y_test": np.full(30, -1)}, r"'y_test' must lie in \[0, 9\], got -1"),
            ({"human_counts_test": np.eye(30, 10, dtype="u1")}, "at least one in each row"),
        ],
    )
    def test_invalid_arrays_raise(self, npz, change, words):
        folder, arrays, _ = npz
        files.write(folder / "cifar10_A.npz", arrays | change)
        with pytest.raises(ValueError, match=words):
            load("cifar10", 0, root=folder, human=True)
