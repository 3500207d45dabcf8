"""Strings in files: labels, groups, and columns that are copied."""

import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import files

WORDS = np.array(["cat", "dög", "a, b", "cat"])


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("kind", [str, object])
def test_strings_are_restored_where_they_are_allowed(tmp_path, refused, suffix, kind):
    path = tmp_path / f"a{suffix}"
    files.write(path, {"logits": np.eye(4), "labels": WORDS.astype(kind)})
    found = files.read(path, ["labels", "logits"], text=["labels"])
    assert found["labels"].tolist() == WORDS.tolist()
    np.testing.assert_array_equal(found["logits"], np.eye(4))
    refused(path, "labels", ["labels"])


def test_a_format_without_strings_says_so(tmp_path):
    with pytest.raises(ValueError, match="safetensors hold no strings, 'labels' does"):
        files.write(tmp_path / "a.safetensors", {"labels": WORDS})


def test_objects_that_are_no_strings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="object arrays are refused"):
        files.write(tmp_path / "a.npz", {"labels": np.array(["a", None], dtype=object)})


def test_damaged_characters_of_an_archive_are_refused(tmp_path, refused):
    raw = io.BytesIO()
    np.save(raw, np.array([1 << 30, 65], "u4").view("U1"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("labels.npy", raw.getvalue())
    refused(tmp_path / "a.npz", "no characters", ["labels"], text=["labels"])


def test_a_column_of_text_has_no_empty_cells_and_starts_with_text(tmp_path, refused):
    path = tmp_path / "a.csv"
    path.write_text("labels,x\ncat,1\n,2\n")
    refused(path, "column 'labels' has an empty cell at row 1", ["labels"], text=["labels"])
    path.write_text("labels,x\n1,1\ncat,2\n")
    refused(path, "'cat' is not a number", ["labels"], text=["labels"])
    path.write_text("labels,x\ncat,1\ndog\n")
    refused(path, "a row has 1 cells, header has 2", ["labels"], text=["labels"])


@pytest.mark.slow
def test_strings_of_parquet_files_are_counted_before_they_fill_the_memory(tmp_path, refused):
    path = tmp_path / "a.parquet"
    long = pa.array(["x" * 10_000] * 100_000)
    pq.write_table(pa.table({"labels": long, "y": range(100_000)}), path)
    assert path.stat().st_size < 2**20
    # A gigabyte of equal strings: read as one object, and refused where it would be written out.
    found = files.read(path, ["labels"], text=["labels"])["labels"]
    assert found[0] is found[-1]
    with pytest.raises(ValueError, match=r"a\.parquet: column labels declares 953\.7 MB"):
        files.rewrite(tmp_path / "b.parquet", [path], {"y": np.arange(100_000)})
    assert not (tmp_path / "b.parquet").exists()
    pq.write_table(pa.table({"labels": ["a", None]}), path)
    refused(path, "has 1 null values", ["labels"], text=["labels"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_parts_are_rewritten_below_each_other(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        files.write(path, {"id": np.array(["u", "v"]), "p": np.zeros(2), "old": np.ones(2)})
    target = tmp_path / f"c{suffix}"
    new = {"p": np.arange(4.0), "old": None, "q": np.arange(4)}
    files.rewrite(target, paths, new)
    assert files.columns(target) == ["id", "p", "q"]
    found = files.read(target, ["id", "p", "q"], text=["id"])
    assert found["id"].tolist() == ["u", "v"] * 2
    np.testing.assert_array_equal(found["p"], np.arange(4.0))
    files.write(paths[1], {"id": np.array(["u", "v"]), "p": np.zeros(2)})
    with pytest.raises(ValueError, match="has other columns than"):
        files.rewrite(target, paths, new)
    with pytest.raises(ValueError, match="another format"):
        files.rewrite(tmp_path / "c.npz", paths, new)
