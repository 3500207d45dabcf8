"""Answer options as predictions: their number may differ."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling

QUESTIONS = st.lists(
    st.lists(st.floats(-50, 0), min_size=1, max_size=6), min_size=1, max_size=8
).filter(lambda rows: max(map(len, rows)) > 1)


def test_probabilities_by_hand():
    p = Predictions.from_choices([[math.log(0.2), math.log(0.6)], [-5.0, -5.0, -5.0]], [1, 0])
    assert p.probs.tolist() == [
        pytest.approx([0.25, 0.75, 0.0]),
        pytest.approx([1 / 3, 1 / 3, 1 / 3]),
    ]
    assert p.logits[0, 2] == -math.inf


@given(QUESTIONS, st.booleans())
def test_the_probabilities_are_those_of_a_loop_over_the_options_of_each_question(rows, divided):
    lengths = [[1 + at % 3 for at in range(len(row))] for row in rows] if divided else None
    p = Predictions.from_choices(rows, [0] * len(rows), lengths=lengths)
    for at, row in enumerate(rows):
        scores = [v / (lengths[at][i] if divided else 1) for i, v in enumerate(row)]
        total = sum(math.exp(score - max(scores)) for score in scores)
        expected = [math.exp(score - max(scores)) / total for score in scores]
        assert p.probs[at, : len(row)].tolist() == pytest.approx(expected, abs=1e-12)
        assert not p.probs[at, len(row) :].any()


def test_arrays_of_each_question_are_as_good_as_lists():
    rows = [[-1.0, -2.0, -3.0], [-2.0, -1.0]]
    arrays = Predictions.from_choices(list(map(np.array, rows)), np.array([0, 1]))
    lists = Predictions.from_choices(rows, [0, 1])
    np.testing.assert_allclose(arrays.probs, lists.probs)
    square = Predictions.from_choices(np.array([[-1.0, -2.0]]), [0])
    assert square.classes == 2


def test_a_planted_temperature_is_found_among_questions_of_different_size():
    generator = np.random.default_rng(0)
    rows, labels = [], []
    for size in generator.integers(2, 6, 6000):
        true = 2 * generator.normal(size=size)
        rows.append(3 * true)
        labels.append(int((true + generator.gumbel(size=size)).argmax()))
    found = TemperatureScaling.fit(Predictions.from_choices(rows, labels)).temperature
    assert found == pytest.approx(3, rel=0.06)


@pytest.mark.parametrize(
    ("choices", "more", "message"),
    [
        ([], {}, "need at least 1 question"),
        ([[-1.0], []], {}, "question 1 has no options"),
        ([-1.0, -2.0], {}, "a list of log-likelihoods for each question"),
        ([[-1.0, -2.0], [math.nan, 0.0]], {}, "nan at question 1, option 0"),
        ([[-1.0, -2.0], [0.0, math.inf]], {}, "inf at question 1, option 1"),
        ([[-1.0, -2.0]], {"lengths": [[1, 0]]}, "lengths must be positive, got 0 at question 0, o"),
        ([[-1.0, -2.0]], {"lengths": [[1]]}, "one number for each option"),
        ([["a", "b"]], {}, "pass numbers"),
        ([[-math.inf, -math.inf]], {}, "-inf for every class"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_wrong_options_are_refused_in_words(choices, more, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Predictions.from_choices(choices, [0] * len(choices), **more)


def test_a_label_beyond_the_options_of_its_question_is_refused():
    with pytest.raises(ValueError, match="label 2 at row 1 is out of range: the question has 2"):
        Predictions.from_choices([[-1.0, -2.0, -3.0], [-1.0, -2.0]], [2, 2])
