import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrant import files

SUFFIXES = list(files.FORMATS)
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
DTYPES += [">f4", ">i8", ">f2"]


def same(read, written, suffix):
    """Equal values and, where the format knows types, equal types in native byte order."""
    np.testing.assert_array_equal(read, written)
    assert read.shape == written.shape
    assert read.dtype.isnative
    assert read.flags.writeable
    text = suffix in (".csv", ".tsv")
    assert read.dtype == (np.float64 if text else written.dtype.newbyteorder("="))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_restored(tmp_path, suffix, dtype):
    path = tmp_path / f"a{suffix}"
    arrays = {
        "logits": np.arange(12).reshape(4, 3).astype(dtype),
        "labels": np.array([0, 1, 1, 0]).astype(dtype),
    }
    files.write(path, arrays)
    assert sorted(files.names(path)) == ["labels", "logits"]
    read = files.read(path, ["labels", "logits"])
    assert list(read) == ["labels", "logits"]
    for name in arrays:
        same(read[name], arrays[name], suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a[::-1, ::2], lambda a: np.broadcast_to(a[:1], a.shape)],
    ids=["fortran", "strided", "broadcast"],
)
def test_the_layout_in_memory_does_not_matter(tmp_path, suffix, layout):
    path = tmp_path / f"a{suffix}"
    array = layout(np.arange(24.0).reshape(4, 6))
    files.write(path, {"logits": array})
    same(files.read(path, ["logits"])["logits"], array, suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_the_requested_arrays_are_returned_with_every_special_number(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    array = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, sys.float_info.max])
    files.write(path, {"logits": np.eye(6), "labels": array})
    read = files.read(path, ["labels"])
    assert list(read) == ["labels"]
    same(read["labels"], array, suffix)
    assert np.signbit(read["labels"][3])
    assert files.read(path, []) == {}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("shape", [(), (2, 3, 4), (0, 3, 4)])
def test_archives_store_any_number_of_dimensions(tmp_path, suffix, shape):
    path = tmp_path / f"a{suffix}"
    array = np.ones(shape)
    files.write(path, {"maps": array})
    same(files.read(path, ["maps"])["maps"], array, suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["file", "args", "a,b", 'a "quoted" name', "a.b", "été", "run_7"])
def test_unusual_names_are_restored(tmp_path, suffix, name):
    path = tmp_path / f"a{suffix.upper()}"
    files.write(path, {name: np.arange(3)})
    assert files.names(path) == [name]
    np.testing.assert_array_equal(files.read(path, [name])[name], [0, 1, 2])


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.integers(0, 5),
    columns=st.integers(1, 4),
    dtype=st.sampled_from(["f2", "f4", "f8", "i4", "u1", "?"]),
    data=st.data(),
)
def test_any_table_is_restored(tmp_path, suffix, rows, columns, dtype, data):
    path = tmp_path / f"a{suffix}"
    arrays = {
        "logits": data.draw(hnp.arrays(dtype, (rows, columns))),
        "labels": data.draw(hnp.arrays("i4", rows)),
    }
    files.write(path, arrays)
    read = files.read(path, ["logits", "labels"])
    for name in arrays:
        same(read[name], arrays[name], suffix)
