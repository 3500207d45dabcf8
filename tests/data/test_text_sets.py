"""Text: words, token ids, and the files of four datasets."""

import os

import numpy as np
import pytest
import torch

from calibrant import files
from calibrant.data import load
from calibrant.data.text_sets import NEWS_NAMES, encoded, vocabulary_of, words_of


def test_words_are_lower_case_letters_and_digits_encoded_by_frequency_and_alphabet():
    text = "Don't STOP -- it's_42 'quoted', Ünïcode über\u2028x n't"
    found = words_of(text, 99)
    assert found == ["don't", "stop", "it's", "42", "quoted", "ünïcode", "über", "x", "n't"]
    documents = [["b", "a", "c"], ["c", "d"], ["c", "a", "b", "e"]]
    assert vocabulary_of(documents, 5) == {"c": 2, "a": 3, "b": 4}
    assert list(vocabulary_of(documents, 99)) == ["c", "a", "b", "d", "e"]
    tokens = encoded([["a", "x", "b"], [], ["b"]], {"a": 2, "b": 3}, 4)
    assert tokens.tolist() == [[2, 1, 3, 0], [0, 0, 0, 0], [3, 0, 0, 0]]
    assert tokens.dtype == torch.int64


TREC = "DESC:manner How did serfdom develop ?\nENTY:cremat What films \xe9\x85 there ?\n" * 20
TREES = "(3 (2 The) (4 (3 Rock) (2 's)))\n(0 (1 Not) (0 good))\n" * 20


def write_trec(folder):
    (folder / "train_5500.label").write_bytes(TREC.encode("latin-1"))
    (folder / "TREC_10.label").write_bytes(b"NUM:dist How far is it ?\nHUM:ind Who ?\n")


def write_sst(folder):
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text(TREES)


def write_agnews(folder):
    rows = '"3","Wall St. ""Bears"" Claw","Short, sellers\nagain"\n"1","World","News"\n' * 20
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text(rows)


def write_news(folder):
    for split, count in (("train", 4), ("test", 2)):
        for name in NEWS_NAMES:
            place = folder / f"20news-bydate-{split}" / name
            place.mkdir(parents=True)
            for i in range(count):
                (place / str(i)).write_bytes(f"From: x\n\n{name} caf\xe9 {i}".encode("latin-1"))


WRITERS = {"trec": write_trec, "sst5": write_sst, "agnews": write_agnews, "20news": write_news}
# Sizes of the splits; labels, and numbers of words, of the first two test examples.
EXPECTED = {
    "trec": ((36, 4, 2), [5, 3], [4, 1]),
    "sst5": ((40, 40, 40), [3, 0], [3, 2]),
    "agnews": ((36, 4, 40), [2, 0], [7, 2]),
    "20news": ((72, 8, 40), [0, 0], [6, 6]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_authors_files_are_read_with_length_and_vocabulary_as_options(tmp_path, name):
    WRITERS[name](tmp_path)
    splits = load(name, 0, root=tmp_path)
    sizes, labels, words = EXPECTED[name]
    assert (len(splits.train), len(splits.val), len(splits.test)) == sizes
    assert splits.test.labels[:2].tolist() == labels
    assert (splits.test.inputs[:2] > 0).sum(1).tolist() == words
    assert splits.kind == "text"
    assert int(splits.train.inputs.max()) == splits.vocabulary - 1
    assert splits.fingerprint == load(name, 0, root=tmp_path).fingerprint
    short = load(name, 0, root=tmp_path, length=3, vocabulary=4)
    assert (short.shape, short.vocabulary) == ((3,), 4)
    assert int(short.train.inputs.max()) <= 3
    for options, message in (
        ({"vocabulary": 2}, "vocabulary must be at least 3"),
        ({"length": 0}, "length must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            load(name, 0, root=tmp_path, **options)


def test_a_set_with_a_val_split_of_its_own_takes_no_fraction(tmp_path):
    write_sst(tmp_path)
    with pytest.raises(ValueError, match="has its own val split"):
        load("sst5", 0, root=tmp_path, val=0.1)


def test_the_vocabulary_comes_from_train_only(tmp_path):
    train = "".join(f"NUM:x common word{i} ?\n" for i in range(50))
    (tmp_path / "train_5500.label").write_text(train)
    (tmp_path / "TREC_10.label").write_text("HUM:x common secret ?\nHUM:x words ?\n")
    splits = load("trec", 0, root=tmp_path)
    assert splits.vocabulary == 2 + 1 + len(splits.train)
    assert splits.test.inputs[:, :3].tolist() == [[2, 1, 0], [1, 0, 0]]
    assert (splits.val.inputs[:, 1] == 1).all()


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("trec", "train_5500.label", b"WHAT:x is it ?\n", "got 'WHAT:x is it"),
        ("trec", "train_5500.label", b"NUM:x\n", "a class .* and a question"),
        ("trec", "TREC_10.label", b"\n\n", "has no examples"),
        ("sst5", "dev.txt", b"(7 (2 The) (4 Rock))\n", "a tree such as"),
        ("sst5", "dev.txt", b"no tree\n", "a tree such as"),
        ("sst5", "train.txt", b"", "has no examples"),
        ("agnews", "train.csv", b"5,a,b\n", "a class from 1 to 4"),
        ("agnews", "train.csv", b"1\n", "a class from 1 to 4"),
        ("agnews", "train.csv", b'1,"a"b\n', "is not a csv file"),
        ("agnews", "train.csv", b'1,"never closed\n', "is not a csv file"),
        ("agnews", "train.csv", b"1," + b"x" * 200_000 + b"\n", "is not a csv file"),
    ],
)
def test_damaged_files_raise_in_one_line(tmp_path, name, file, content, words):
    WRITERS[name](tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        load(name, 0, root=tmp_path)
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_and_missing_files_and_pipes_raise(tmp_path, monkeypatch):
    write_trec(tmp_path)
    monkeypatch.setattr("calibrant.data.text_sets.MAX_BYTES", 100)
    with pytest.raises(ValueError, match=r"train_5500.label has .* more than 100 bytes"):
        load("trec", 0, root=tmp_path)
    monkeypatch.undo()
    (tmp_path / "TREC_10.label").unlink()
    with pytest.raises(FileNotFoundError, match="TREC_10"):
        load("trec", 0, root=tmp_path)
    write_news(tmp_path)
    (tmp_path / "20news-bydate-test" / "sci.med").rename(tmp_path / "20news-bydate-test" / "med")
    with pytest.raises(ValueError, match=r"has no folder sci\.med"):
        load("20news", 0, root=tmp_path)
    os.mkfifo(tmp_path / "20news-bydate-train" / "sci.med" / "pipe")
    with pytest.raises(OSError, match="pipe is a device, a pipe or a socket, not a file"):
        load("20news", 0, root=tmp_path)


def npz_arrays():
    raw = [text.encode() for text in ["what is it", "wer ist da", "", "caf\u00e9"] * 10]
    found = {}
    for split in ("train", "test"):
        found[f"text_{split}"] = np.frombuffer(b"".join(raw), dtype=np.uint8)
        found[f"offsets_{split}"] = np.cumsum([0, *map(len, raw)])
        found[f"y_{split}"] = (np.arange(40) % 6).astype(np.uint8)
    return found


def test_documents_of_an_npz_file_are_split_at_the_offsets(tmp_path):
    files.write(tmp_path / "trec.npz", npz_arrays())
    splits = load("trec", 0, root=tmp_path)
    assert (splits.test.inputs > 0).sum(1)[:4].tolist() == [3, 3, 0, 1]
    assert splits.test.labels[:7].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert splits.vocabulary == 2 + 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets_train": np.arange(41) * 10}, "must increase from 0 to"),
        ({"offsets_train": -np.arange(41)}, "must increase from 0 to"),
        ({"offsets_train": np.zeros(1, np.int64)}, "must be at least 2 integers"),
        ({"offsets_train": np.zeros(41)}, "must be at least 2 integers"),
        ({"text_train": np.zeros(10)}, "must be bytes"),
        ({"y_train": np.zeros(39, np.uint8)}, "must be 40 integers"),
        ({"y_train": np.full(40, 6, np.uint8)}, r"must lie in \[0, 5\], got 6"),
    ],
)
def test_invalid_arrays_of_an_npz_file_raise(tmp_path, change, words):
    files.write(tmp_path / "trec.npz", npz_arrays() | change)
    with pytest.raises(ValueError, match=words):
        load("trec", 0, root=tmp_path)
