import errno
import os
import stat

import numpy as np
import pytest

from calibrant import files
from calibrant.files.atomic import replacing

OLD = {"labels": np.arange(3)}
NEW = {"labels": np.arange(5)}


@pytest.fixture(params=files.FORMATS)
def path(request, tmp_path):
    path = tmp_path / f"a{request.param}"
    files.write(path, OLD)
    return path


def untouched(path):
    assert os.listdir(path.parent) == [path.name]
    np.testing.assert_array_equal(files.read(path, ["labels"])["labels"], OLD["labels"])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=f"cannot write: No space left.*{path.name}") as caught:
        files.write(path, NEW)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    untouched(path)


def test_an_error_on_a_read_only_disk_names_the_target(path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system", ".0123.tmp")

    # There even removing a file that is not there fails.
    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    with pytest.raises(OSError, match="cannot write: Read-only file system") as caught:
        files.write(path, NEW)
    monkeypatch.undo()
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
    untouched(path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(path, monkeypatch, error):
    def interrupted(handle, arrays):
        handle.write(b"half a file")
        raise error

    monkeypatch.setattr(files.FORMATS[path.suffix], "write", interrupted)
    with pytest.raises(error):
        files.write(path, NEW)
    untouched(path)


def test_the_new_file_is_visible_only_when_complete(path):
    with replacing(path) as handle:
        handle.write(b"half a file")
        handle.flush()
        np.testing.assert_array_equal(files.read(path, ["labels"])["labels"], OLD["labels"])
        handle.seek(0)
        handle.truncate()
    assert path.read_bytes() == b""


def test_the_file_is_synced_before_the_rename_and_the_folder_after_it(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        calls.append("folder" if is_folder else "file")
        if not is_folder:
            assert os.fstat(descriptor).st_size > 0
        fsync(descriptor)

    def logged_replace(source, target):
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    files.write(path, NEW)
    assert calls == ["file", "replace", "folder"]
    np.testing.assert_array_equal(files.read(path, ["labels"])["labels"], NEW["labels"])


def test_a_new_file_has_the_permissions_of_any_other(path):
    other = path.parent / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_the_same_arrays_give_the_same_bytes(path):
    before = path.read_bytes()
    files.write(path, OLD)
    assert path.read_bytes() == before


def test_only_a_file_in_a_folder_that_exists_is_written(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write .*a.npz: no folder .*gone; create"):
        files.write(tmp_path / "gone" / "a.npz", OLD)
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(IsADirectoryError, match=r"cannot write .*a.npz: it is a folder"):
        files.write(tmp_path / "a.npz", OLD)
    with pytest.raises(ValueError, match=r"'.pt'; expected one of .npz, .parquet, .csv, .tsv"):
        files.write(tmp_path / "a.pt", OLD)


UNREADABLE = ["", " a", "a/b", "a\\b", "a\nb", "\x1b[31m"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        *(({name: np.arange(3)}, "name must be printable, with no slash") for name in UNREADABLE),
        ({"a": np.array([None])}, "array 'a': object arrays are refused"),
        ({"a": np.array([1j])}, "array 'a': dtype complex128 is not supported"),
        ({}, "nothing to write"),
    ],
)
def test_names_and_arrays_that_cannot_be_restored_are_refused(path, arrays, words):
    with pytest.raises(ValueError, match=words):
        files.write(path, arrays)
    untouched(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.ones(3), "b": np.ones((2, 2))}, "'a' has 3 rows, 'b' has 2"),
        ({"a": np.ones((2, 2, 2))}, r"'a' has \(2, 2, 2\)"),
        ({"a": np.ones((2, 0))}, r"'a' has \(2, 0\)"),
        ({"a": np.array(1.0)}, r"'a' has \(\)"),
        ({"a_0": np.ones(2)}, "'a_0' would be read back as part of 'a'"),
        ({"a": np.ones((2, 2)), "a_1": np.ones(2)}, "'a_1' would be read back as part of 'a'"),
    ],
)
def test_arrays_that_do_not_form_a_table_are_refused(tmp_path, suffix, arrays, words):
    with pytest.raises(ValueError, match=words):
        files.write(tmp_path / f"a{suffix}", arrays)
    assert os.listdir(tmp_path) == []
