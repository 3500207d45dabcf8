"""Free answers with a stated confidence, or with the share of samples that agree."""

import pytest

from calibrant.language_models import read


def test_confidence_is_read_as_a_number_or_as_percent(write_lines):
    lines = [
        {"confidence": 0.85, "correct": True},
        {"confidence": "85%", "correct": 0},
        {"confidence": " 0.5 ", "correct": "true"},
        {"confidence": 1, "correct": 1.0, "task": "maths"},
    ]
    log = read(write_lines(lines, "qa.jsonl"), "confidence")
    assert log.predictions.confidence.tolist() == pytest.approx([0.85, 0.85, 0.5, 1])
    assert log.predictions.correct.tolist() == [1, 0, 1, 1]
    assert log.tasks == ["qa", "maths"]
    assert log.facts == "2 tasks, free answers"


def test_on_a_scale_of_percent_one_is_one_percent(write_lines):
    lines = [{"sure": 85, "right": True}, {"sure": 1, "right": False}, {"sure": "7%", "right": 1}]
    options = {"confidence": "sure", "correct": "right", "scale": "percent"}
    log = read(write_lines(lines), "confidence", **options)
    assert log.predictions.confidence.tolist() == pytest.approx([0.85, 0.01, 0.07])


def test_sampled_confidence_is_the_share_of_the_most_frequent_answer(write_lines):
    lines = [
        {"samples": ["Paris", " Paris", "Lyon", "Paris"], "answer": "Paris"},
        {"samples": ["4", 5, 4, "6"], "answer": 5},
        # Of answers that tie the first counts.
        {"samples": ["b", "a", "a", "b"], "answer": "b"},
        {"samples": ["x", "y", "x"], "correct": False},
    ]
    log = read(write_lines(lines), "confidence")
    assert log.predictions.confidence.tolist() == pytest.approx([0.75, 0.5, 0.5, 2 / 3])
    assert log.predictions.correct.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"confidence": 85, "correct": 1}, "from 0 to 1, .* got 85; if 100 is .* --scale percent"),
        ({"confidence": -0.1, "correct": 1}, "got -0.1"),
        ({"confidence": "high", "correct": 1}, "got 'high'"),
        ({"confidence": "120%", "correct": 1}, "from 0 to 100, .* got '120%'"),
        ({"confidence": "1_0%", "correct": 1}, "got '1_0%'"),
        ({"confidence": True, "correct": 1}, "got True"),
        ({"confidence": None, "correct": 1}, "got None"),
        ({"confidence": [1], "correct": 1}, "got .1."),
        ({"confidence": float("nan"), "correct": 1}, "got nan"),
        ({"confidence": 0.5, "correct": "yes"}, "correctness must be a boolean, 0 or 1, got 'yes'"),
        ({"confidence": 0.5}, "no 'correct'; the line has .'confidence'."),
        ({"samples": ["a"], "answer": "a"}, "'samples' must be a list of 2 or more answers"),
        ({"samples": ["a", None], "answer": "a"}, "an answer must be text or a number, got None"),
    ],
)
def test_other_lines_are_refused_in_one_line_with_the_place(write_lines, line, message):
    path = write_lines([{"confidence": 0.5, "correct": 1}, line])
    with pytest.raises(ValueError, match=message) as caught:
        read(path, "confidence")
    assert str(caught.value).startswith(f"{path}: line 2: ")


def test_an_empty_file_and_an_unknown_scale_are_refused(write_lines):
    with pytest.raises(ValueError, match="has no lines"):
        read(write_lines([]), "confidence")
    with pytest.raises(ValueError, match="scale must be one of unit, percent, got '%'"):
        read(write_lines([]), "confidence", scale="%")
