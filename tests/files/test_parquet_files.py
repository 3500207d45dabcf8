import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import files
from calibrant.files import parquet_headers


def zigzag(value):
    """An integer in the compact encoding of Thrift."""
    value, out = value << 1, b""
    while value > 127:
        value, out = value >> 7, out + bytes([value & 127 | 128])
    return out + bytes([value])


def lists(rows, width, kind):
    flat = pa.array(np.zeros(rows * width, dtype=np.float32))
    if kind == "numbers":
        return flat
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.ListArray.from_arrays(np.arange(0, rows * width + 1, width, dtype=np.int32), flat)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.parquet"


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)],
    ids=str,
)
@pytest.mark.parametrize("row_group_size", [1, 2, 100])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_lists_of_numbers_become_rows(path, kind, row_group_size, version):
    table = pa.table(
        {"logits": pa.array([[1, 2], [3, 4], [5, 6]], type=kind), "id": ["a", "b", "c"]}
    )
    pq.write_table(table, path, row_group_size=row_group_size, data_page_version=version)
    read = files.read(path, ["logits"])["logits"]
    np.testing.assert_array_equal(read, [[1, 2], [3, 4], [5, 6]])
    assert read.dtype == np.float32


def test_numbered_columns_become_one_array_in_the_order_of_their_numbers(path):
    columns = {f"logits_{i}": [float(i), i + 0.5] for i in reversed(range(11))}
    pq.write_table(pa.table({**columns, "labels": [0, 1]}), path)
    assert files.names(path) == ["logits", "labels"]
    read = files.read(path, ["logits", "labels", "logits_1"])
    np.testing.assert_array_equal(read["logits"], [np.arange(11), np.arange(11) + 0.5])
    np.testing.assert_array_equal(read["labels"], [0, 1])
    np.testing.assert_array_equal(read["logits_1"], [1, 1.5])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["logits_0", "logits_2"], "'logits_1' is missing, though 'logits_2' .* number .* from 0"),
        (["logits_1", "logits_2"], "column 'logits_0' is missing"),
        (["logits", "logits_0"], "has columns 'logits' and 'logits_0'; drop one"),
        (["logits", "logits"], "column 'logits' appears 2 times"),
    ],
)
def test_gaps_and_ambiguous_names_are_refused(path, refused, columns, words):
    pq.write_table(pa.table([pa.array([1.0]), pa.array([2.0])], names=columns), path)
    refused(path, words)


def test_names_that_pyarrow_would_read_together_are_refused(path, refused):
    pq.write_table(pa.table({"logits": [1.0], "logits.x": [[1.0] * 9]}), path)
    refused(path, "'logits' and 'logits.x' are ambiguous")
    refused(path, "'logits' and 'logits.x' are ambiguous", requested=["logits.x"])


@pytest.mark.parametrize("rows", [[[1, 2], None, None], [[1, 2], [3, None], [None, 4]]])
@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 2), "numbers"])
def test_nulls_are_counted(path, refused, kind, rows):
    column = [1, None, None] if kind == "numbers" else pa.array(rows, type=kind)
    pq.write_table(pa.table({"logits": column}), path, row_group_size=2)
    refused(path, "column 'logits' has 2 null values; fill them or drop")


@pytest.mark.parametrize("row_group_size", [1, 2, 100])
def test_ragged_lists_name_the_row_and_both_lengths(path, refused, row_group_size):
    table = pa.table({"logits": [[1.0, 2.0], [3.0, 4.0], [5.0]]})
    pq.write_table(table, path, row_group_size=row_group_size)
    refused(path, "column 'logits' has lists of different lengths: row 0 has 2, row 2 has 1")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a"], "string"),
        ([["a"]], "list<.*string>"),
        ([[[1.0]]], "list<.*list<"),
        ([{"a": 1}], "struct<a: int64>"),
        (pa.array([1], type=pa.timestamp("s")), "timestamp"),
        (pa.array([1], type=pa.decimal128(9, 2)), "decimal128"),
        (pa.array(["a"]).dictionary_encode(), "dictionary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_that_are_not_numeric_name_their_type(path, refused, values, words):
    pq.write_table(pa.table({"logits": values}), path)
    refused(path, f"column 'logits' has type {words}.*; expected numbers")


def test_numbered_columns_of_lists_are_refused(path, refused):
    pq.write_table(pa.table({"logits_0": [[1.0]], "logits_1": [[1.0]]}), path)
    refused(path, "numbered column 'logits_0' holds lists")


def test_files_are_written_with_lists_of_fixed_length(path):
    files.write(path, {"logits": np.eye(3, dtype=np.float32), "labels": np.arange(3)})
    schema = pq.read_schema(path)
    assert schema.field("logits").type == pa.list_(pa.float32(), 3)
    assert schema.field("labels").type == pa.int64()


def test_the_damaged_row_group_is_named(path, refused):
    table = pa.table({"logits": np.random.default_rng(0).normal(size=3000)})
    pq.write_table(table, path, write_page_checksum=True, row_group_size=1000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(path, "row group 1 cannot be read .*: file is damaged")


@pytest.mark.parametrize("data", [b"", b"PA", b"PAR1 and more", b"PK\x03\x04" * 9])
def test_a_file_without_the_last_4_bytes_is_refused(path, refused, data):
    path.write_bytes(data)
    words = r"not a valid parquet file: .* \(last 4 bytes are not PAR1\)"
    refused(path, words)
    with pytest.raises(ValueError, match=words):
        files.names(path)


@pytest.mark.parametrize("data", [b"PAR1", b"PAR1PAR1", b"PAR1" + b"\xff" * 8 + b"PAR1"])
def test_a_file_without_a_footer_is_refused(path, refused, data):
    path.write_bytes(data)
    refused(path, "not a valid parquet file")


@pytest.fixture
def _small_is_4_megabytes(monkeypatch):
    monkeypatch.setattr("calibrant.files.checks.SMALL", 4 * 2**20)


@pytest.mark.parametrize("kind", ["list", "fixed", "numbers"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.usefixtures("_small_is_4_megabytes")
def test_a_decompression_bomb_is_refused_and_read_on_request(path, refused, kind, version):
    # A million zeros take a few kB, and the footer calls that their uncompressed size.
    table = pa.table({"logits": lists(17, 2**16, kind)})
    pq.write_table(table, path, data_page_version=version, compression="zstd")
    assert os.path.getsize(path) < 10_000
    words = r"column data of \['logits'\] declares 4.2 MB, .* stored \(x\d+ > x100\); pass max_exp"
    refused(path, words)
    assert files.read(path, ["logits"], max_expansion=1e6)["logits"].size == 17 * 2**16


@pytest.mark.parametrize("kind", ["list", "fixed"])
@pytest.mark.usefixtures("_small_is_4_megabytes")
def test_a_bomb_whose_footer_understates_its_lists_is_refused(path, refused, kind):
    pq.write_table(pa.table({"logits": lists(1, 2**21, kind)}), path)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true, lie = zigzag(2**21), zigzag(2**20)
    assert true in data[footer:]
    assert len(true) == len(lie)
    path.write_bytes(data[:footer] + data[footer:].replace(true, lie))
    refused(path, r"declares 8.0 MB")


def test_the_limit_on_bytes_holds_for_all_columns_together(path, refused):
    files.write(path, {"logits": np.zeros((100, 3)), "labels": np.zeros(100)})
    assert files.read(path, ["logits", "labels"], max_bytes=3200)
    refused(
        path, "more than 3.1 kB; pass max_bytes", requested=["logits", "labels"], max_bytes=3199
    )
    assert files.read(path, ["labels"], max_bytes=800)


def test_constant_arrays_of_calibrant_are_within_the_limits(path):
    files.write(path, {"labels": np.zeros(9_000_000, dtype=np.int64)})
    assert len(files.read(path, ["labels"])["labels"]) == 9_000_000


def test_a_file_without_row_groups_has_no_rows(path):
    with pq.ParquetWriter(path, pa.schema({"logits": pa.list_(pa.float64()), "y": pa.int8()})):
        pass
    read = files.read(path, ["logits", "y"])
    assert read["logits"].shape == (0, 0)
    assert read["y"].shape == (0,)


# Field 1 is the i32 3, field 2 a boolean, field 3 a list of the binaries `a` and `bc`.
RECORD = b"\x15\x06\x11\x19\x28\x01a\x02bc\x00"


def test_a_record_returns_the_requested_fields():
    assert parquet_headers.decode(RECORD + b"rest", {1: {}, 3: {}}) == (
        {1: 3, 3: [b"a", b"bc"]},
        len(RECORD),
    )
    assert parquet_headers.decode(RECORD, {2: {}, 9: {}}) == ({2: True}, len(RECORD))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x15\x06\x05\x02\x08\x00", "appears twice"),
        (b"\x15" + b"\xff" * 5 + b"\x01\x00", "more than 32 bits"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1c" * 50, "nested too deeply"),
        (b"\x19" * 50 + b"\x19", "nested too deeply"),
        (b"\x1e\x00", "unknown type"),
    ],
)
def test_an_ambiguous_record_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        parquet_headers.decode(data, {1: {}})


@pytest.mark.parametrize("length", range(len(RECORD)))
def test_a_truncated_record_is_refused(length):
    with pytest.raises(IndexError):
        parquet_headers.decode(RECORD[:length], {})
