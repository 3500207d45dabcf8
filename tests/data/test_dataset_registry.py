"""Names, options and folders of datasets, and their error messages."""

import sys
from pathlib import Path

import pytest

import calibrant.data
from calibrant.data import DATASETS, load
from calibrant.data.registry import data_root


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_is_documented_and_says_where_to_get_its_files(name, tmp_path, monkeypatch):
    dataset = DATASETS[name]
    for text in (dataset.meaning, dataset.where):
        assert text
        assert "\n" not in text
    assert dataset.load.__doc__
    assert {"val", "limit"} <= {*dataset.options}
    with pytest.raises(ValueError, match=f"no option of {name} 'limt'; did you mean limit"):
        load(name, 0, limt=3)
    if name in ("digits", "blobs", "teacher", "hf"):
        return
    monkeypatch.setattr("calibrant.data.idx.DEBIAN", tmp_path / "absent")
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
    for root in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match=f"{name}: (no|neither)") as caught:
            load(name, 0, root=root)
        assert f"looked in {tmp_path}; {dataset.where}" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar", {}, "no dataset 'cifar'; did you mean cifar1"),
        ("zzzz", {}, "no dataset 'zzzz'; expected one of digits"),
        ("blobs:x", {}, "no dataset 'blobs:x'"),
        ("hf", {}, "write the name of the dataset after hf:"),
        ("blobs", {"size": 3}, "no option of blobs 'size'"),
        ("camvid", {"label_noise": 0.1}, "no option of camvid 'label_noise'"),
        ("cifar100", {"human": True}, "no option of cifar100 'human'"),
    ],
)
def test_unknown_names_and_options_of_other_inputs_raise(name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, 0, **options)


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_a_seed_is_an_integer(seed, as_a_user_runs_it):
    with pytest.raises((ValueError, TypeError), match="seed must be an integer"):
        load("blobs", seed)


def test_root_comes_first_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DATA", "/somewhere")
    assert data_root(tmp_path) == tmp_path
    assert data_root(None) == Path("/somewhere")
    monkeypatch.delenv("CALIBRANT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root(None) == Path("/cache/calibrant/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root(None) == Path.home() / ".cache/calibrant/data"
    with pytest.raises(FileNotFoundError, match="root must be a folder"):
        load("mnist", 0, root=tmp_path / "absent")


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
