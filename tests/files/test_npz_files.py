import io
import re
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest

from calibrant import files


def npy(array, **changes):
    """Bytes of an npy file, with some of its header's text replaced."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    data = stream.getvalue()
    for old, new in changes.values():
        assert old in data
        data = data.replace(old, new.ljust(len(old)), 1)
    return data


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, data in members:
            target.writestr(name, data)
    return path


@contextmanager
def little_memory():
    """Check that at most a megabyte is allocated."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.npz"


def test_reads_what_numpy_writes(path):
    logits = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for save in (np.savez, np.savez_compressed):
        save(path, logits=logits, labels=np.arange(2, dtype=">i2"))
        read = files.read(path, ["logits", "labels"])
        np.testing.assert_array_equal(read["logits"], logits)
        np.testing.assert_array_equal(read["labels"], [0, 1])
        assert read["labels"].dtype == np.int16


def test_numpy_reads_what_is_written(path):
    files.write(path, {"logits": np.eye(3), "file": np.arange(3)})
    with np.load(path, allow_pickle=False) as loaded:
        np.testing.assert_array_equal(loaded["logits"], np.eye(3))
        np.testing.assert_array_equal(loaded["file"], np.arange(3))


def test_reads_an_array_of_many_blocks(path, monkeypatch):
    monkeypatch.setattr("calibrant.files.npz.BLOCK", 1000)
    array = np.arange(3000.0)
    np.savez_compressed(path, logits=array)
    np.testing.assert_array_equal(files.read(path, ["logits"])["logits"], array)


def test_object_arrays_are_refused_before_they_are_unpickled(path, refused):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("code ran",))

    hidden = np.zeros(2, dtype=[("a", "f8"), ("b", "O")])
    for array in (np.array([1, Bomb()], dtype=object), hidden):
        archive(path, [("logits.npy", npy(array))])
        refused(path, "object arrays are refused .*can run code.*numeric")


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([1j]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, dtype=[("a", "f8")]),
        np.zeros(2, dtype=np.longdouble),
    ],
    ids=lambda array: array.dtype.str,
)
def test_arrays_that_are_not_numeric_are_refused(path, refused, array):
    if array.dtype == np.float64:
        pytest.skip("here a long double is a double")
    np.savez(path, logits=array)
    refused(path, "logits: dtype .* is not supported; expected float, integer or bool")


def test_other_arrays_are_not_read(path):
    data = npy(np.array([None]))
    archive(path, [("labels.npy", npy(np.arange(3))), ("junk.npy", data)])
    assert files.read(path, ["labels"])["labels"].tolist() == [0, 1, 2]


def test_a_decompression_bomb_is_refused_and_read_on_request(path, refused):
    # 70 MB of zeros deflate to 70 kB.
    archive(path, [("logits.npy", npy(np.zeros(70 * 2**20, "u1")))], zipfile.ZIP_DEFLATED)
    words = (
        r"member logits declares 70.0 MB, .* kB stored \(x\d+ > x100\); pass max_expansion=\.\.\."
    )
    refused(path, words)
    assert len(files.read(path, ["logits"], max_expansion=2000)["logits"]) == 70 * 2**20


def test_the_declared_stored_size_is_at_most_that_of_the_file(path, refused):
    archive(path, [("logits.npy", npy(np.zeros(70 * 2**20, "u1")))], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 20 : entry + 24] = struct.pack("<I", 2**30)
    path.write_bytes(data)
    refused(path, "its table of contents does not match its members")


def test_a_small_array_may_expand_a_lot(path):
    archive(path, [("logits.npy", npy(np.zeros(2**20, "u1")))], zipfile.ZIP_DEFLATED)
    assert len(files.read(path, ["logits"])["logits"]) == 2**20


def test_the_limit_on_bytes_holds(path, refused):
    np.savez(path, logits=np.zeros(1000))
    refused(
        path, r"member logits declares 7.9 kB, more than 1000 bytes; pass max_bytes", max_bytes=1000
    )


@pytest.mark.parametrize("shape", [b"(1000000000000,)", b"(4,)", b"(2,)", b"(-3,)", b"(3, 0)"])
def test_a_header_with_a_wrong_size_is_refused_without_allocating(path, refused, shape):
    data = npy(np.zeros(3), shape=(b"(3,), }" + b" " * 20, shape + b", }"))
    archive(path, [("logits.npy", data)])
    with little_memory():
        refused(path, r"declares \(.* float64, -?\d+ bytes, and holds 24")


def test_a_header_of_gigabytes_is_not_read(path, refused):
    data = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * (40 * 2**20)
    archive(path, [("logits.npy", data)], zipfile.ZIP_DEFLATED)
    with little_memory():
        refused(path, "not a valid npz file: member logits: EOF")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x93NUMPY", b"\x93NUMPY\x03\x00", b"\x93NUMPY\x01\x00\x04\x00junk", b"\x80\x04K\x01."],
    ids=["empty", "magic only", "version 3", "no dict", "pickle"],
)
def test_a_member_that_is_no_array_is_refused(path, refused, data):
    archive(path, [("logits.npy", data)])
    refused(path, "not a valid npz file: member logits: ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../logits.npy", "has a path in its name"),
        ("/logits.npy", "has a path in its name"),
        ("a\\logits.npy", "has a path in its name"),
        ("logits.pkl", "is no .npy array"),
        ("logits", "is no .npy array"),
        (".npy", "is no .npy array"),
        ("a\nb\x1b[31m.txt", "member 'a b \\[31m.txt' is no .npy array"),
    ],
)
def test_files_with_unusual_members_are_refused(path, refused, name, words):
    archive(path, [("logits.npy", npy(np.eye(2))), (name, npy(np.eye(2)))])
    refused(path, f"not a valid npz file: .*{words}")
    with pytest.raises(ValueError, match=words):
        files.names(path)


def test_repeated_and_too_many_members_are_refused(path, refused, monkeypatch):
    data = npy(np.eye(2))
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(path, [("logits.npy", data)] * 2)
    refused(path, "appears twice")
    archive(path, [(f"a{i}.npy", data) for i in range(64)])
    assert len(files.names(path)) == 64
    archive(path, [(f"a{i}.npy", data) for i in range(65)])
    refused(path, "it has 65 members, at most 64")
    # A longer table of contents is not even parsed.
    monkeypatch.setattr("calibrant.files.npz.MAX_CONTENTS", 10_000)
    archive(path, [(f"a{i}.npy", b"") for i in range(500)])
    refused(path, "table of contents is too long")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_numpy_never_writes_is_refused(path, refused, compression):
    archive(path, [("logits.npy", npy(np.eye(2)))], compression)
    refused(path, "not a valid npz file: member logits has unsupported compression")


def test_an_encrypted_member_is_refused(path, refused):
    archive(path, [("logits.npy", npy(np.eye(2)))])
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    refused(path, "not a valid npz file: member logits is encrypted")


def test_a_member_with_two_names_is_refused(path, refused):
    np.savez(path, logits=np.eye(2), labels=np.arange(2))
    data = path.read_bytes()
    # The first is before the data, the second in the table of contents.
    for place in (data.index(b"labels.npy"), data.rindex(b"labels.npy")):
        path.write_bytes(data[:place] + b"x" + data[place + 1 :])
        refused(path, r"not a valid npz file: a member has two names")


def test_a_member_that_the_table_of_contents_does_not_list_is_refused(path):
    np.savez(path, logits=np.eye(2), weights=np.ones(2))
    data = path.read_bytes()
    first, second = (at.start() for at in re.finditer(b"PK\x01\x02", data))
    end = data.rindex(b"PK\x05\x06")
    for kept in (data[first:second], data[second:end]):
        tail = bytearray(data[end:])
        tail[8:20] = struct.pack("<HHII", 1, 1, len(kept), first)
        path.write_bytes(data[:first] + kept + tail)
        with zipfile.ZipFile(path) as found:
            assert len(found.infolist()) == 1
        with pytest.raises(ValueError, match="table of contents does not match its members"):
            files.names(path)


def test_members_of_a_streaming_writer_are_read(path):
    class Stream(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    stream = Stream()
    archive(stream, [("logits.npy", npy(np.eye(2))), ("labels.npy", npy(np.arange(2)))])
    path.write_bytes(stream.data)
    assert files.read(path, ["labels"])["labels"].tolist() == [0, 1]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_fails_the_checksum(path, refused, save):
    save(path, logits=np.random.default_rng(0).normal(size=1000))
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    refused(path, "not a valid npz file: member logits: (Bad CRC|Error -3)")


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "it is empty"), (b"PK", "not a zip file"), (b"\x93NUMPY" + b"0" * 99, "not a zip file")],
)
def test_a_file_that_is_not_an_archive_is_refused(path, refused, data, words):
    path.write_bytes(data)
    refused(path, f"is not a valid npz file: .*{words}")


def test_a_short_stream_with_a_valid_checksum_is_refused(path, refused):
    # Else the rest of the array would be whatever the memory held before.
    short, whole = npy(np.zeros(1000))[:900], npy(np.zeros(1000))
    archive(path, [("logits.npy", short)], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    for size_at in (22, data.rindex(b"PK\x01\x02") + 24):
        assert data[size_at : size_at + 4] == struct.pack("<I", len(short))
        data[size_at : size_at + 4] = struct.pack("<I", len(whole))
    path.write_bytes(data)
    refused(path, "is not a valid npz file: member logits: it ends after 772 of 8000 bytes")


def test_booleans_other_than_0_and_1_are_refused(path, refused):
    data = npy(np.array([2, 1], dtype="u1"), dtype=(b"'|u1'", b"'|b1'"))
    archive(path, [("logits.npy", data)])
    refused(path, "bool array holds bytes other than 0 and 1")
