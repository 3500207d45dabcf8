"""Hugging Face datasets from local folders."""

import json

import numpy as np
import pytest

from calibrant.data import load

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)


def saved(folder, features, **splits):
    made = {
        name: datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        for name, columns in splits.items()
    }
    datasets.DatasetDict(made).save_to_disk(folder)
    return f"hf:{folder}"


TEXT = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}


def columns(n, text="word{} here"):
    return {"text": [text.format(i) for i in range(n)], "label": [i % 2 for i in range(n)]}


def test_text_is_found_by_its_columns(tmp_path):
    name = saved(tmp_path / "x", TEXT, train=columns(40), validation=columns(6), test=columns(8))
    splits = load(name, 0)
    assert (splits.name, splits.kind, splits.class_names) == (name, "text", ("no", "yes"))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (40, 6, 8)
    assert splits.test.labels.tolist() == [0, 1] * 4
    assert splits.fingerprint == load(name, 0).fingerprint
    with pytest.raises(ValueError, match=r"no option of .*, which is text 'size'"):
        load(name, 0, size=3)


def test_with_hidden_test_labels_validation_becomes_test(tmp_path):
    hidden = columns(5) | {"label": [-1] * 5}
    name = saved(tmp_path / "x", TEXT, train=columns(40), validation=columns(6), test=hidden)
    splits = load(name, 0)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 4, 6)


def test_images_are_decoded_and_resized(tmp_path):
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 256, (5, 6, 3), dtype=np.uint8) for _ in range(20)]
    features = {"img": datasets.Image(), "fine": datasets.ClassLabel(names=["a", "b"])}
    content = {"img": [Image.fromarray(a) for a in arrays], "fine": [0, 1] * 10}
    name = saved(tmp_path / "x", features, train=content)
    splits = load(name, 0, limit=10)
    assert (splits.kind, splits.shape) == ("images", (3, 5, 6))
    for i, row in enumerate(splits.train.rows.tolist()):
        assert np.array_equal(splits.train.inputs[i].movedim(0, 2), arrays[row])
        assert splits.train.labels[i] == row % 2
    assert load(name, 0, size=4).shape == (3, 4, 4)


def test_columns_can_be_named_and_invalid_ones_raise(tmp_path):
    features = {
        "title": datasets.Value("string"),
        "body": datasets.Value("string"),
        "stars": datasets.Value("int64"),
    }
    content = {"title": ["a b c"] * 20, "body": ["d"] * 20, "stars": [1, 5] * 10}
    name = saved(tmp_path / "x", features, train=content)
    with pytest.raises(
        ValueError, match=r"pass label_column=..., one of \['title', 'body', 'stars'\]"
    ):
        load(name, 0)
    splits = load(name, 0, label_column="stars", input_column="body")
    assert splits.class_names == ("1", "5")
    assert (splits.train.inputs > 0).sum(1).unique().tolist() == [1]
    with pytest.raises(ValueError, match="no column 'bdy'"):
        load(name, 0, label_column="stars", input_column="bdy")
    with pytest.raises(ValueError, match="holds neither images nor text"):
        load(name, 0, label_column="title", input_column="stars")


def test_a_folder_of_json_lines_is_read(tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    for split, n in (("train", 30), ("test", 10)):
        lines = [json.dumps({"text": f"word {i}", "label": "ab"[i % 2]}) for i in range(n)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    splits = load(f"hf:{folder}", 0)
    assert (len(splits.train), len(splits.test)) == (27, 10)
    assert splits.class_names == ("a", "b")


def test_missing_data_raise_in_one_line(tmp_path):
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        load(f"hf:{tmp_path / 'absent'}", 0)
    assert "\n" not in str(caught.value)
    name = saved(tmp_path / "x", TEXT, test=columns(4))
    with pytest.raises(ValueError, match="has no split 'train'"):
        load(name, 0)
