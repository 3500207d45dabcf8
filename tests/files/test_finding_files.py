import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import files


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def part(name, **arrays):
    files.write(Path(name), arrays)
    return Path(name)


def test_a_pattern_expands_to_sorted_files():
    os.makedirs("x/deep")
    os.makedirs("x/folder.csv")
    for name in ("x/c.csv", "x/a.csv", "x/b.npz", "x/deep/d.csv"):
        part(name, labels=np.arange(3))
    assert files.expand("x/*.csv") == [Path("x/a.csv"), Path("x/c.csv")]
    assert files.expand("x/**/*.csv") == [Path("x/a.csv"), Path("x/c.csv"), Path("x/deep/d.csv")]


@pytest.mark.parametrize("name", ["a.npz", "a[1].npz"])
def test_a_path_is_one_file_also_with_brackets_in_its_name(name):
    part(name, labels=np.arange(3))
    assert files.expand(name) == files.expand(Path(name)) == [Path(name)]


def test_a_pattern_without_files_is_refused():
    with pytest.raises(FileNotFoundError, match=r"^no files match 'x/\*\.parquet'$"):
        files.expand("x/*.parquet")


@pytest.mark.parametrize("use", [files.expand, files.names, lambda p: files.read(p, ["labels"])])
def test_special_files_are_refused(use):
    with pytest.raises(FileNotFoundError, match=r"^no such file: gone\.npz$"):
        use(Path("gone.npz"))
    Path("folder.npz").mkdir()
    with pytest.raises(
        IsADirectoryError, match=r"^folder\.npz is a folder; give a file, or a pattern"
    ):
        use(Path("folder.npz"))
    Path("folder.npz/log.jsonl").touch()
    with pytest.raises(IsADirectoryError, match=r"such as folder\.npz/\*\.jsonl$"):
        use(Path("folder.npz"))
    os.mkfifo("pipe.npz")
    with pytest.raises(OSError, match=r"^pipe\.npz is a .*, not a file$"):
        use(Path("pipe.npz"))


@pytest.mark.parametrize("name", ["a.pt", "a.pkl", "a", "a.npy"])
def test_an_unknown_suffix_lists_the_known_ones(name):
    Path(name).touch()
    for use in (files.names, lambda p: files.read(p, ["labels"])):
        with pytest.raises(ValueError, match=r"expected one of .npz, .parquet, .csv, .tsv, "):
            use(Path(name))


def test_parts_are_concatenated_in_order():
    paths = [
        part("a.npz", logits=np.zeros((2, 3), "f4"), labels=np.array([0, 1])),
        part("b.parquet", logits=np.ones((1, 3), "f8"), labels=np.array([2], "i2")),
    ]
    read = files.read_parts(paths, ["logits", "labels"])
    np.testing.assert_array_equal(read["logits"], [[0] * 3, [0] * 3, [1] * 3])
    np.testing.assert_array_equal(read["labels"], [0, 1, 2])
    assert read["logits"].dtype == np.float64
    assert list(read) == ["logits", "labels"]


def test_a_part_without_rows_adds_nothing():
    schema = pa.schema({"logits": pa.list_(pa.float64())})
    pq.write_table(schema.empty_table(), "a.parquet")
    full = part("b.parquet", logits=np.eye(3))
    read = files.read_parts([Path("a.parquet"), full, Path("a.parquet")], ["logits"])
    np.testing.assert_array_equal(read["logits"], np.eye(3))
    assert files.read_parts([Path("a.parquet")] * 2, ["logits"])["logits"].shape == (0, 0)


def test_parts_that_differ_name_the_first_such_file_and_the_array():
    first = part("a.npz", logits=np.eye(3), labels=np.arange(3))
    same = part("b.npz", logits=np.eye(3), labels=np.arange(3))
    wider = part("c.npz", logits=np.ones((3, 4)), labels=np.arange(3))
    floats = part("d.npz", logits=np.eye(3), labels=np.arange(3.0))
    bare = part("e.npz", logits=np.eye(3), y=np.arange(3))
    short = part("f.npz", logits=np.ones((3, 2)), labels=np.arange(2))
    long = part("g.npz", logits=np.ones((2, 2)), labels=np.arange(3))
    scalar = part("h.npz", logits=np.eye(3), labels=np.array(3))
    other = r"c.npz: rows of 'logits' have shape \(4,\), \(3,\) in a.npz"
    for paths, words in (
        ([first, same, wider, floats], other),
        ([first, floats, wider], "d.npz: 'labels' is float64, but int64 in a.npz"),
        ([first, bare], r"e.npz has no 'labels'; it holds \['logits', 'y'\]"),
        ([short, long], "f.npz: .* equal rows, got .*'logits': 3, 'labels': 2"),
        ([scalar], "h.npz: 'labels' is a single number"),
        ([], "at least 1 file"),
    ):
        with pytest.raises(ValueError, match=words):
            files.read_parts(paths, ["logits", "labels"])


def test_the_limits_apply_to_every_part():
    paths = [part("a.npz", labels=np.arange(3)), part("b.npz", labels=np.arange(300))]
    with pytest.raises(ValueError, match=r"b\.npz: member labels declares 2.5 kB, more than"):
        files.read_parts(paths, ["labels"], max_bytes=1000)


@pytest.mark.parametrize("suffix", files.FORMATS)
def test_a_missing_name_lists_what_is_there(refused, suffix):
    path = part(f"a{suffix}", logits=np.eye(2), y=np.arange(2))
    refused(path, r"has no 'labels'; it holds \['logits', 'y'\]", ["logits", "labels"])


def test_a_long_list_of_names_is_truncated():
    part("a.csv", **{f"name{i}x": np.arange(2) for i in range(30)})
    with pytest.raises(ValueError, match=r"'name19x', and 10 more\]$"):
        files.read(Path("a.csv"), ["labels"])
