"""Names, options and folders of datasets, and their error messages."""

import sys
from pathlib import Path

import pytest

import calibrant.data
from calibrant.data import DATASETS, load
from calibrant.data.registry import data_root


@pytest.mark.parametrize("name", DATASETS)
class TestEveryDataset:
    def test_it_is_documented_and_an_unknown_option_raises(self, name):
        dataset = DATASETS[name]
        for text in (dataset.meaning, dataset.where):
            assert text
            assert "\n" not in text
        assert dataset.load.__doc__
        assert "val" in dataset.options
        assert "limit" in dataset.options

    def test_an_unknown_option_is_answered_with_the_right_ones(self, name):
        with pytest.raises(ValueError, match=f"no option of {name} 'limt'; did you mean limit"):
            load(name, 0, limt=3)

    def test_missing_files_raise_with_the_searched_folders(self, name, tmp_path, monkeypatch):
        if name in ("digits", "blobs", "teacher", "hf"):
            return
        monkeypatch.setattr("calibrant.data.idx.DEBIAN", tmp_path / "absent")
        with pytest.raises(FileNotFoundError) as caught:
            load(name, 0, root=tmp_path)
        message = str(caught.value)
        assert message.startswith(f"{name}: no") or message.startswith(f"{name}: neither")
        assert str(tmp_path) in message
        assert DATASETS[name].where in message
        assert "\n" not in message


def test_a_wrong_name_is_answered_with_the_nearest_or_with_all():
    with pytest.raises(ValueError, match="no dataset 'cifar'; did you mean cifar1"):
        load("cifar", 0)
    with pytest.raises(ValueError, match="no dataset 'zzzz'; expected one of digits"):
        load("zzzz", 0)
    with pytest.raises(ValueError, match="no dataset 'blobs:x'"):
        load("blobs:x", 0)


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_a_seed_is_an_integer(seed, as_a_user_runs_it):
    with pytest.raises((ValueError, TypeError), match="seed must be an integer"):
        load("blobs", seed)


def test_options_of_other_inputs_are_unknown():
    with pytest.raises(ValueError, match="no option of blobs 'size'"):
        load("blobs", 0, size=3)
    with pytest.raises(ValueError, match="no option of camvid 'label_noise'"):
        load("camvid", 0, label_noise=0.1)
    with pytest.raises(ValueError, match="no option of cifar100 'human'"):
        load("cifar100", 0, human=True)
    with pytest.raises(ValueError, match="write the name of the dataset after hf:"):
        load("hf", 0)


class TestFolders:
    def test_root_comes_first_then_the_variable_then_the_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CALIBRANT_DATA", "/somewhere")
        assert data_root(tmp_path) == tmp_path
        assert data_root(None) == Path("/somewhere")
        monkeypatch.delenv("CALIBRANT_DATA")
        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        assert data_root(None) == Path("/cache/calibrant/data")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert data_root(None) == Path.home() / ".cache/calibrant/data"

    def test_a_root_that_is_not_a_folder_raises(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="root must be a folder"):
            load("mnist", 0, root=tmp_path / "absent")

    def test_the_folder_is_named_when_data_are_missing(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
        with pytest.raises(FileNotFoundError, match=f"looked in {tmp_path};"):
            load("cifar100", 0)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("sklearn.datasets", "digits", "sklearn"), ("datasets", "hf:x", "datasets")],
)
def test_a_missing_library_raises_with_its_extra(module, name, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module.split('.')[0]}") as caught:
        load(name, 0)
    assert extra in str(caught.value)


def test_public_names():
    expected = "load DATASETS Dataset Split Splits Batch Scale Augmentation with_soft_labels "
    expected += "tail_groups frequency_groups SHIFTS shifted"
    assert {*expected.split(), "SYNTHETIC", "Sample", "Synthetic"} == set(calibrant.data.__all__)
