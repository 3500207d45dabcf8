"""Several labels for each example: construction, views, files."""

import copy

import numpy as np
import pandas
import pytest
import torch

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.export.single import refuse_labels

NAMES = ["cat", "dog", "eel"]
FORMATS = ["npz", "csv", "tsv", "parquet", "safetensors"]


def multi(n=200, k=3, missing=0.2, seed=0, **options):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, size=(n, k))
    labels = (generator.random((n, k)) < 1 / (1 + np.exp(-logits))).astype(float)
    labels[generator.random((n, k)) < missing] = np.nan
    return MultiLabel(logits, labels, label_names=NAMES[:k] if k == 3 else None, **options)


@pytest.mark.parametrize("mark", [np.nan, -1, -100])
def test_missing_labels_equal_dropping_them(mark):
    given = multi()
    labels = np.where(given.known, given.labels, mark)
    marked = MultiLabel(given.logits, labels, label_names=NAMES)
    known = given.known[:, 1]
    dropped = Predictions.from_binary(
        given.logits[known, 1],
        given.labels[known, 1],
        kind="logits",
        class_names=["not dog", "dog"],
    )
    assert marked.label("dog").sha256 == dropped.sha256
    assert marked.pooled().sha256 == given.pooled().sha256
    assert 0 < len(dropped) < len(given)


def test_pooled_entries_are_grouped_by_example():
    given = multi()
    row, column = given.known.nonzero().T
    pooled = given.pooled()
    assert pooled.labels.tolist() == given.labels[row, column].tolist()
    assert pooled.groups.tolist() == row.tolist()
    grouped = multi(groups=np.arange(200) // 2)
    assert grouped.pooled().groups.tolist() == (row // 2).tolist()


def test_weights_are_those_of_the_examples():
    given = multi(weights=np.arange(1.0, 201))
    rows = given.rows("cat")
    assert given.label("cat").weights.tolist() == (rows + 1).tolist()


def test_split_keeps_groups_whole_and_loses_no_example():
    given = multi(groups=np.arange(200) // 4)
    first, second = given.split(0.3, seed=0)
    assert len(first) + len(second) == 200
    assert not set(map(tuple, first.logits.tolist())) & set(map(tuple, second.logits.tolist()))
    assert (np.bincount(first.groups) == 4).all()


def test_probabilities_are_kept_and_lists_of_scikit_learn_are_understood():
    probs = multi().probs
    listed = [torch.stack([1 - each, each], 1).numpy() for each in probs.T]
    given = MultiLabel.from_probs(listed, multi().labels)
    assert given.probs.tolist() == probs.tolist()
    torch.testing.assert_close(given.logits, multi().logits)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("named", [True, False])
def test_files_keep_scores_labels_and_names(suffix, named, tmp_path):
    given = multi(weights=np.arange(1.0, 201), groups=np.arange(200) // 2)
    given = given if named else MultiLabel.from_probs(given.probs, given.labels)
    given.save(tmp_path / f"m.{suffix}")
    found = MultiLabel.load(tmp_path / f"m.{suffix}")
    assert found.pooled().sha256 == given.pooled().sha256
    assert (found.labels == given.labels).all()
    assert found.label_names == given.label_names
    assert (found.weights is None) is not named


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_matched_by_name_and_empty_cells_are_missing(suffix, tmp_path):
    given = multi()
    frame = given.to_pandas()[["y_dog", "p_eel", "p_cat", "y_eel", "p_dog", "y_cat"]]
    frame["id"] = [f"row {at}" for at in range(len(frame))]
    path = tmp_path / f"m.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    found = MultiLabel.load(path, probs="p_*", labels="y_*")
    assert found.label_names == ("eel", "cat", "dog")
    for name in NAMES:
        assert found.label(name).labels.tolist() == given.label(name).labels.tolist()
        torch.testing.assert_close(found.label(name).probs, given.label(name).probs)


def test_columns_of_other_labels_are_refused(tmp_path):
    frame = multi().to_pandas().rename(columns={"y_dog": "y_fox"})
    frame.to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(ValueError, match=r"must have the same names, got \[.*'cat', 'fox'"):
        MultiLabel.load(tmp_path / "m.csv", probs="p_*", labels="y_*")


def test_an_unknown_array_of_an_archive_is_refused(tmp_path):
    np.savez(tmp_path / "m.npz", logits=np.zeros((3, 2)), labels=np.eye(3, 2), lables=np.eye(3, 2))
    with pytest.raises(ValueError, match=r"unknown arrays \['lables'\]; name the arrays"):
        MultiLabel.load(tmp_path / "m.npz")
    assert MultiLabel.load(tmp_path / "m.npz", ignore=["lables"]).size == 2


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ([[1.0, 2.0]], [1, 0], r"\(1, 2\), got \(2,\)"),
        ([[1.0, 2.0]], [[1, 2]], "must be 0 or 1, or NaN, -1 or -100 .* got 2 at row 0, label 1"),
        ([[1.0, 2.0]], [[1, -1]], "hold -1 and no 0: use 0 for absent labels"),
        ([[1.0, np.nan]], [[1, 0]], "contains 1 NaN"),
        ([1.0, 2.0], [1, 0], r"logits must be \(n, k\)"),
        ([[True, False]], [[1, 0]], "dtype bool is not supported"),
    ],
)
def test_invalid_input_is_refused_in_one_line(logits, labels, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        MultiLabel(logits, labels)
    assert "\n" not in str(caught.value)


def test_probabilities_outside_the_range_and_columns_of_one_outcome_are_refused():
    with pytest.raises(ValueError, match=r"row 0, label 1\); .* use MultiLabel\(logits"):
        MultiLabel.from_probs([[0.5, 1.5]], [[1, 0]])
    with pytest.raises(
        ValueError, match=r"array \(4, 2\) for each label, got \(4, 1\) for label 1"
    ):
        MultiLabel.from_probs([np.full((4, 2), 0.5), np.ones((4, 1))], np.eye(4, 2))


def test_columns_of_data_frames_are_matched_by_name():
    given = multi(missing=0.0)
    scores = pandas.DataFrame(given.probs.numpy(), columns=NAMES)
    labels = pandas.DataFrame(given.labels.numpy(), columns=NAMES)
    turned = labels[NAMES[::-1]]
    for prefixes in (("", ""), ("p_", "y_")):
        frames = [f.add_prefix(p) for f, p in zip((scores, turned), prefixes, strict=True)]
        for found in (MultiLabel.from_probs(*frames), MultiLabel(*frames)):
            assert found.label_names == tuple(NAMES)
            assert torch.equal(found.labels, given.labels)
    other = turned.set_axis(["x", "y", "z"], axis=1)
    assert torch.equal(MultiLabel.from_probs(scores, other).labels, given.labels.flip(1))
    plain = MultiLabel.from_probs(scores, labels, label_names=["a", "b", "c"])
    assert plain.label_names == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"must have the same names, got .*'dog'.* and .*'fox'"):
        MultiLabel.from_probs(scores, labels.rename(columns={"dog": "fox"}))


def test_none_is_a_missing_label():
    assert MultiLabel([[1.0, 2.0]], [[None, 0]]).labels.tolist() == [[-1, 0]]


@pytest.mark.parametrize("name", ["confidence", "example_stats", "classes", "class_names"])
def test_attributes_of_classes_name_what_several_labels_need_instead(name):
    with pytest.raises(AttributeError, match=rf"no {name}: use metrics\.macro, metrics\.micro or"):
        getattr(multi(), name)
    assert repr(copy.deepcopy(multi())) == repr(multi())


def test_a_calibrator_of_labels_is_not_exported_whole():
    with pytest.raises(TypeError, match="has no export of its own"):
        refuse_labels(MultiLabelCalibrator.fit(multi()))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_booleans_of_tables_are_labels_also_with_missing_cells(suffix, tmp_path):
    frame = pandas.DataFrame({"p_a": [0.3, 0.2, 0.1], "p_b": [0.4, 0.5, 0.6]})
    frame["y_a"], frame["y_b"] = [True, False, True], [False, None, True]
    path = tmp_path / f"m.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    found = MultiLabel.load(path, probs="p_*", labels="y_*")
    assert found.labels.tolist() == [[1, 0], [0, -1], [1, 1]]


def test_it_is_immutable_and_names_what_it_does_not_have():
    given = multi()
    with pytest.raises(AttributeError, match="immutable"):
        given.labels = None
    with pytest.raises(ValueError, match=r"no label 'fox'; the labels are .'cat', 'dog', 'eel'"):
        given.label("fox")
    with pytest.raises(ValueError, match="not known in any example"):
        MultiLabel([[1.0, 2.0], [0.0, 1.0]], [[1, np.nan], [0, np.nan]]).label(1)
    assert "cat" in given._repr_html_()


def test_one_label_for_each_example_asks_for_the_right_class():
    with pytest.raises(ValueError, match=r"or use MultiLabel\(logits, labels\)"):
        Predictions(np.zeros((4, 3)), np.eye(4, 3))
