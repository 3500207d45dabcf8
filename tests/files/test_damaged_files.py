import numpy as np
import pytest

from calibrant import files

RNG = np.random.default_rng(7)
ARRAYS = {
    "logits": RNG.normal(size=(40, 3)).astype(np.float32),
    "labels": RNG.integers(0, 3, size=40),
}
REQUESTED = list(ARRAYS)


def check_survives(path, data):
    """Only a refusal with the file's name may come out, or the arrays as they were."""
    # A new file each time: some filesystems flush an overwritten one on closing.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        files.names(path)
        # Warnings are errors in tests: one of a parquet file says that it was changed.
        read = files.read(path, REQUESTED)
    except (ValueError, UserWarning) as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert str(path) in message
        assert "\n" not in message
        return
    for name, array in read.items():
        # csv has no checksum, so its numbers may be others.
        if path.suffix not in (".csv", ".tsv"):
            np.testing.assert_array_equal(array, ARRAYS[name])
        assert array.dtype.kind in "fiub"
        assert array.size <= 2 * ARRAYS[name].size


@pytest.fixture(params=files.FORMATS)
def written(request, tmp_path):
    path = tmp_path / f"a{request.param}"
    files.write(path, ARRAYS)
    return path, path.read_bytes()


def test_flipped_overwritten_cut_inserted_and_removed_bytes_are_refused_or_harmless(written):
    path, data = written
    for offset in RNG.integers(0, len(data), size=60):
        before, after = data[:offset], data[offset:]
        noise = RNG.bytes(int(RNG.integers(1, 9)))
        check_survives(path, before + bytes([after[0] ^ 1 << int(RNG.integers(8))]) + after[1:])
        check_survives(path, before + noise + after[len(noise) :])
        check_survives(path, before)
        check_survives(path, before + RNG.bytes(3) + after)
        check_survives(path, before + after[3:])


def test_a_damaged_parquet_footer_does_not_crash_the_process(tmp_path):
    # Some of these bits make pyarrow's own view of the footer call abort().
    path = tmp_path / "a.parquet"
    files.write(path, ARRAYS)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for offset in range(footer, footer + 70):
        damaged = bytearray(data)
        damaged[offset] ^= 1
        check_survives(path, bytes(damaged))


@pytest.mark.parametrize("suffix", files.FORMATS)
def test_random_bytes_are_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    for size in range(0, 200, 7):
        path.write_bytes(RNG.bytes(size))
        with pytest.raises(ValueError, match=path.name):
            files.read(path, REQUESTED)
