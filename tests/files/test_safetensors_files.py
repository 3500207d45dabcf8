import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calibrant import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def by_hand(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_bfloat16_is_read_as_float32(path):
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"logits": logits, "half": logits.half()}, path)
    read = files.read(path, ["logits", "half"])
    assert read["logits"].dtype == np.float32
    assert read["half"].dtype == np.float16
    np.testing.assert_array_equal(read["logits"], logits.float().numpy())
    np.testing.assert_array_equal(read["half"], logits.half().numpy())


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.complex64, "C64")]
)
def test_unsupported_dtypes_are_named(path, refused, dtype, name):
    save_file({"logits": torch.ones(3).to(dtype), "labels": torch.arange(3)}, path)
    refused(path, f"tensor 'logits' has dtype {name}, which is not supported; expected one of F64")
    assert files.read(path, ["labels"])["labels"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 100, b"PK\x03\x04" * 9])
def test_a_file_of_another_kind_is_refused(path, refused, data):
    path.write_bytes(data)
    refused(path, "is not a valid safetensors file: ")
    with pytest.raises(ValueError, match="is not a valid safetensors file: "):
        files.names(path)


@pytest.mark.parametrize("shape", [[10**12], [2**62, 4], [3]])
def test_a_header_with_a_wrong_size_is_refused(path, refused, shape):
    by_hand(path, {"logits": {"dtype": "F64", "shape": shape, "data_offsets": [0, 16]}}, bytes(16))
    refused(path, "is not a valid safetensors file: ")


def test_booleans_other_than_0_and_1_are_refused(path, refused):
    by_hand(path, {"logits": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}, b"\1\2")
    refused(path, "bool array holds bytes other than 0 and 1")


def test_the_limit_on_bytes_holds(path, refused):
    files.write(path, {"logits": np.zeros(1000)})
    refused(path, "tensor logits declares 7.8 kB, more than 1000 bytes", max_bytes=1000)


def test_a_reserved_name_is_refused(path):
    with pytest.raises(ValueError, match="'__metadata__' is reserved by"):
        files.write(path, {"__metadata__": np.eye(2)})
    assert not path.exists()
