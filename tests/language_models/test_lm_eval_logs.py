"""Sample logs of lm-evaluation-harness are read as it scored them."""

import json
import math

import numpy as np
import pytest

from calibrant.language_models import read

METRICS = {
    "none": "acc",
    "characters": "acc_norm",
    "bytes": "acc_bytes",
    "mutual-info": "acc_mutual_info",
}


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def sample(values, target, acc=None, *, doc_id=0, options=None, **more):
    """A line as the harness writes it."""
    options = options or [f" {'abcdefgh'[at]}" for at in range(len(values))]
    record = {
        "doc_id": doc_id,
        "doc": {"question": "Which?"},
        "target": str(target),
        "arguments": {
            f"gen_args_{at}": {"arg_0": "Which?", "arg_1": text} for at, text in enumerate(options)
        },
        "resps": [[[str(value), "False"]] for value in values],
        "filtered_resps": [[str(value), "False"] for value in values],
        "filter": "none",
        "metrics": ["acc"],
    }
    return record | ({} if acc is None else {"acc": acc}) | more


# The task `capitals` does not measure mutual information.
SCORED = [("words", by) for by in METRICS]
SCORED += [("capitals", by) for by in METRICS if by != "mutual-info"]


@pytest.mark.parametrize(("task", "by"), SCORED)
def test_every_normalization_scores_a_log_of_the_harness_as_the_harness_does(harness_log, task, by):
    path = harness_log(task)
    log = read(path, "lm-eval", normalize_by=by)
    expected = [record[METRICS[by]] for record in logged(path)]
    assert log.predictions.correct.tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert log.tasks == [f"tiny_{task}"]


def test_log_likelihoods_and_options_are_those_of_the_log(harness_log):
    path = harness_log("capitals")
    log = read(path, "lm-eval")
    lengths = read(path, "lm-eval", normalize_by="characters").scores
    for row, record in enumerate(logged(path)):
        names = record["doc"]["options"]
        values = [float(pair[0]) for pair in record["filtered_resps"]]
        assert log.counts[row] == len(names)
        assert log.scores[row, : len(names)].tolist() == values
        assert np.isneginf(log.scores[row, len(names) :]).all()
        divided = [value / len(name) for value, name in zip(values, names, strict=True)]
        assert lengths[row, : len(names)].tolist() == pytest.approx(divided)
        assert log.labels[row] == record["doc"]["answer"]
    assert log.chance == pytest.approx(np.mean([1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    assert "2 to 5 options, accuracy of guessing 0.3208" in log.facts


def test_targets_that_are_texts_become_indices(harness_log):
    path = harness_log("words")
    labels = [each["doc"]["options"].index(each["doc"]["answer"]) for each in logged(path)]
    assert read(path, "lm-eval").labels.tolist() == labels


def test_of_two_options_in_the_prompts_the_score_says_which_is_right(harness_log):
    path = harness_log("pronouns")
    labels = [int(each["doc"]["answer"]) - 1 for each in logged(path)]
    assert read(path, "lm-eval").labels.tolist() == labels
    with pytest.raises(ValueError, match="options in the prompts, which have no length"):
        read(path, "lm-eval", normalize_by="characters")


@pytest.mark.parametrize(
    ("task", "message"),
    [("free", "generated text: this task is no multiple choice"), ("cloze", "one option only")],
)
def test_tasks_without_options_are_refused(harness_log, task, message):
    with pytest.raises(ValueError, match=message):
        read(harness_log(task), "lm-eval")


def test_lists_and_numbers_of_older_versions_are_read(write_lines):
    old = sample([-1.0, -2.0], 0) | {
        "target": 1,
        "arguments": [["Which?", " no"], ["Which?", " yes"]],
        "filtered_resps": [[-1.0, False], [-2.0, False]],
    }
    log = read(write_lines([old], "boolq.jsonl"), "lm-eval")
    assert (log.scores.tolist(), log.labels.tolist(), log.tasks) == ([[-1, -2]], [1], ["boolq"])


def test_a_number_as_target_is_an_index_or_an_option_as_the_score_says(write_lines):
    options = [" 2", " 0", " 1"]
    # The most likely option, 2, has the index 0: right as a text, wrong as an index.
    as_text = sample([-1.0, -2.0, -3.0], 2, 1.0, options=options)
    assert read(write_lines([as_text]), "lm-eval").labels.tolist() == [0]
    as_index = sample([-1.0, -2.0, -3.0], 2, 0.0, options=options)
    assert read(write_lines([as_index]), "lm-eval").labels.tolist() == [2]
    del as_index["acc"]
    with pytest.raises(ValueError, match="may be indices or options, and there is no acc"):
        read(write_lines([as_index]), "lm-eval")


def test_the_delimiter_is_not_counted_as_part_of_an_option(write_lines):
    options = [" a", " bbbbbbbb"]
    line = sample([-2.0, -10.0], 1, 0.0, options=options, acc_norm=1.0)
    assert read(write_lines([line]), "lm-eval", normalize_by="characters").scores.tolist() == [
        [-2.0, -10 / 8]
    ]
    # With an empty delimiter the space is the option's own: -3 / 2 beats -10 / 6, -3 / 1 does not.
    own = sample([-3.0, -10.0], 0, 1.0, options=[" a", " bbbbb"], acc_norm=1.0)
    assert read(write_lines([own]), "lm-eval", normalize_by="characters").scores.tolist() == [
        [-3 / 2, -10 / 6]
    ]


def test_of_several_filters_the_one_that_changes_nothing_is_read(write_lines):
    lines = [
        sample([-1.0, -2.0], 0, filter=name, doc_id=at)
        for at in range(3)
        for name in ("none", "reversed")
    ]
    assert len(read(write_lines(lines), "lm-eval").labels) == 3
    for at, line in enumerate(lines):
        line["filter"] = "other" if at % 2 else "reversed"
    with pytest.raises(ValueError, match=r"several filters, .'reversed', 'other'.: log one"):
        read(write_lines(lines), "lm-eval")


def test_an_impossible_option_is_masked_and_a_label_always_first_is_said(write_lines):
    lines = [sample([-1.0, "-inf", -2.0], 0, 1.0, doc_id=at) for at in range(20)]
    with pytest.warns(UserWarning, match="the right answer is always option 0"):
        log = read(write_lines(lines), "lm-eval")
    assert log.predictions.probs[0, 1] == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no lines"),
        ([sample([-1.0, -2.0], 7)], "line 1: target '7' is none of the 2 options"),
        ([sample([-1.0, -2.0], "[0, 1]", 1.0)], "line 1: target .* has several right options"),
        ([sample([-1.0, -2.0], 0, 0.0)], "acc is 0, but the most likely option is 0 and the targ"),
        ([sample([-1.0, -2.0], 0, 0.4)], "acc is 0.4, but .* a scoring of its own"),
        ([sample([-1.0, -2.0], 0)] * 2, "line 2: doc_id 0 is in line 1 already"),
        ([sample([math.nan, -2.0], 0)], "line 1: .* no log-likelihood of option 0, but 'nan'"),
        ([sample(["x" * 999, -2.0], 0)], "no log-likelihood of option 0"),
        ([sample(["-inf", "-inf"], 0)], "every option has the log-likelihood -inf"),
        ([sample([-1.0] * 2, 0, options=[" a", " b", " c"])], "2 log-likelihoods of 3 options"),
        ([sample([-1.0] * 1001, 0, options=[" a"] * 1001)], "1,001 options, at most 1,000"),
        ([{"doc_id": 0}], "line 1: no 'arguments'; expected a sample log"),
        ([{k: v for k, v in sample([-1.0, -2.0], 0).items() if k != "target"}], "no 'target'"),
    ],
)
def test_other_logs_are_refused_in_one_line_with_the_place(write_lines, lines, message):
    path = write_lines(lines)
    with pytest.raises(ValueError, match=message) as caught:
        read(path, "lm-eval")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_a_metric_that_a_normalization_does_not_explain_is_refused(write_lines):
    line = sample([-1.0, -9.0], 0, 1.0, acc_norm=0.0)
    with pytest.raises(ValueError, match=r"line 1: acc_norm is 0, which .* do not explain"):
        read(write_lines([line]), "lm-eval", normalize_by="characters")
    with pytest.raises(ValueError, match="normalize_by must be one of none, characters"):
        read(write_lines([line]), "lm-eval", normalize_by="tokens")
    empty = sample([-1.0, -9.0], 1, options=["", " b"])
    with pytest.raises(ValueError, match="option 0 is empty and has no length"):
        read(write_lines([empty]), "lm-eval", normalize_by="bytes")


def test_several_logs_are_tasks_of_one_model(harness_log, tmp_path):
    log = read([harness_log("capitals"), harness_log("words")], "lm-eval")
    assert log.tasks == ["tiny_capitals", "tiny_words"]
    assert log.scores.shape == (20, 5)
    assert log.slices["task"].tolist() == ["tiny_capitals"] * 12 + ["tiny_words"] * 8
    assert log.slices["options"].tolist() == log.counts.tolist()
    again = tmp_path / "samples_tiny_words_2026-11-19T20-05-22.324759.jsonl"
    again.write_bytes(harness_log("words").read_bytes())
    with pytest.raises(ValueError, match="are logs of the same task 'tiny_words'"):
        read([harness_log("words"), again], "lm-eval")


def test_an_array_that_one_line_makes_huge_is_refused(write_lines):
    lines = [sample([-1.0, -2.0], at % 2, doc_id=at) for at in range(20_000)]
    lines.append(sample([-1.0] * 1000, 0, options=[f" {at}" for at in range(1000)], doc_id="x"))
    log = read(write_lines(lines), "lm-eval", max_expansion=2)
    with pytest.raises(ValueError, match=r"the array of options declares 152\.6 MB"):
        _ = log.predictions


def test_a_score_that_is_no_fraction_tells_nothing(write_lines):
    for acc in (10**400, -1, 1.5):
        path = write_lines([sample([-1.0, -2.0], 1, acc, options=[" no", " yes"])])
        assert read(path, "lm-eval").labels.tolist() == [1]
