"""Names, options and folders of datasets, and their error messages."""

import sys
from pathlib import Path

import pytest

import calibrant.data
from calibrant.data import DATASETS, load
from calibrant.data.registry import data_folders


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
        with pytest.raises(ValueError, match=f"no option of {name} 'limt'; did you mean 'limit'"):
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


def test_an_unknown_name_raises_with_the_nearest_and_all_names():
    with pytest.raises(ValueError, match="no dataset 'cifar'; did you mean 'cifar1") as caught:
        load("cifar", 0)
    assert all(name in str(caught.value) for name in DATASETS)
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
    def test_root_comes_first_then_the_variable_then_the_neighbours(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CALIBRANT_DATA", "/somewhere")
        assert data_folders(tmp_path) == [tmp_path]
        assert data_folders(None) == [Path("/somewhere")]
        monkeypatch.delenv("CALIBRANT_DATA")
        near, checkout = data_folders(None)
        assert near == Path("../shared/data")
        package = Path(calibrant.data.__file__).parents[3]
        assert checkout == package.parent / "shared" / "data"

    def test_a_root_that_is_not_a_folder_raises(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="root must be a folder"):
            load("mnist", 0, root=tmp_path / "absent")

    def test_all_searched_folders_are_named_when_nothing_is_found(self, tmp_path, monkeypatch):
        monkeypatch.delenv("CALIBRANT_DATA", raising=False)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"searched \.\./shared/data, /.*shared/data"):
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
