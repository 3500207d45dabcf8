"""Responses with log-probabilities of tokens: OpenAI's interface, as vLLM serves it, too."""

import math
import warnings

import pytest

from calibrant.language_models import read

LETTERS = ["A", "B", "C", "D"]


def position(token, **top):
    """A generated token as chat completions report it."""
    entries = [
        {"token": name.replace("_", " "), "logprob": value, "bytes": list(name.encode())}
        for name, value in top.items()
    ]
    own = next((each for each in entries if each["token"] == token), {"logprob": -7.0})
    return {"token": token, "bytes": None, "logprob": own["logprob"], "top_logprobs": entries}


def chat(*positions, **more):
    """A line with a chat completion."""
    message = {"role": "assistant", "content": "".join(each["token"] for each in positions)}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": list(positions), "refusal": None},
        "finish_reason": "length",
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "choices": [choice],
    } | more


FULL = {"A": math.log(0.5), "B": math.log(0.3), "C": math.log(0.15), "D": math.log(0.05)}


def test_the_four_shapes_of_a_response_give_the_same_numbers(write_lines):
    own = position("A", **FULL)
    body = chat(own)
    old = {
        "object": "text_completion",
        "choices": [
            {
                "text": "A",
                "index": 0,
                "logprobs": {
                    "tokens": ["A"],
                    "token_logprobs": [FULL["A"]],
                    "top_logprobs": [FULL],
                    "text_offset": [0],
                },
            }
        ],
    }
    new = {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "content": [{"type": "output_text", "logprobs": [own]}]},
        ],
    }
    batch = {"custom_id": "q", "response": {"status_code": 200, "body": body}, "error": None}
    lines = [each | {"label": "B"} for each in (body, old, new, batch)]
    log = read(write_lines(lines), "openai", options=LETTERS)
    for row in log.scores.tolist():
        assert row == pytest.approx(list(FULL.values()))
    assert log.labels.tolist() == [1] * 4
    assert log.predictions.class_names == tuple(LETTERS)
    assert log.predictions.probs[0].tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_tokens_that_differ_in_space_are_one_option(write_lines):
    line = chat(position("A", A=math.log(0.25), _A=math.log(0.25), B=math.log(0.4)), label="A")
    log = read(write_lines([line]), "openai", options=["A", "B"])
    assert log.scores[0].tolist() == pytest.approx([math.log(0.5), math.log(0.4)])


def test_an_unreported_option_gets_the_largest_probability_that_it_can_have(write_lines):
    # 0.1 of the mass is left for C and D: 0.05 each, which is less than the smallest reported.
    line = chat(position("A", A=math.log(0.6), B=math.log(0.3)), label="C")
    with pytest.warns(UserWarning, match="2 options of 1 questions, 1 of them right, are not amo"):
        log = read(write_lines([line]), "openai", options=LETTERS)
    expected = [math.log(each) for each in (0.6, 0.3, 0.05, 0.05)]
    assert log.scores[0].tolist() == pytest.approx(expected)
    # Here 0.48 is left, but nothing unreported is more likely than 0.02.
    line = chat(position("A", A=math.log(0.5), The=math.log(0.02)), label="A")
    with pytest.warns(UserWarning, match="1 options of 1 questions, 0 of them right"):
        log = read(write_lines([line]), "openai", options=["A", "B"])
    assert log.scores[0].tolist() == pytest.approx([math.log(0.5), math.log(0.02)])


def test_the_number_that_means_unreported_is_no_log_probability(write_lines):
    line = chat(position("A", A=math.log(0.9), B=-9999.0), label="A")
    with pytest.warns(UserWarning, match="1 options of 1 questions"):
        log = read(write_lines([line]), "openai", options=["A", "B"])
    assert log.scores[0, 1] == pytest.approx(math.log(0.1))


def test_the_answer_is_the_first_token_or_else_the_last_that_is_an_option(write_lines):
    word, first = position("Answer", It=-1.0), position(" A", _A=-0.1, _B=-3.0)
    last = position("B", A=-2.0, B=-0.2)
    cases = [([first, word, last], 0), ([word, first, last], 1), ([word, first], 0)]
    for positions, predicted in [*cases, ([word, last], 1)]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*have several tokens that are options")
            line = chat(*positions, label=0)
            log = read(write_lines([line]), "openai", options=["A", "B"])
        assert log.predictions.predicted.tolist() == [predicted]


def test_lines_without_an_answer_are_left_out_and_counted(write_lines):
    good = chat(position("A", A=-0.1, B=-3.0), label="B", task="law")
    silent = chat(position("I", I=-0.1), position(" cannot", _cannot=-0.1), label="B")
    other = chat(position("I", I=-0.1), label="B")
    failed = {"custom_id": "q", "response": None, "error": {"code": "timeout"}, "label": "A"}
    with pytest.warns(UserWarning, match="lines left out") as caught:
        log = read(write_lines([silent, good, other, failed]), "openai", options=["A", "B"])
    said = " ".join(str(each.message) for each in caught)
    assert "1 of 4 lines left out, without a token that is an option" in said
    assert "1 of 4 lines left out, without an option among the reported tokens" in said
    assert "1 of 4 lines left out, failed requests" in said
    assert log.labels.tolist() == [1]
    assert log.tasks == ["law"]
    assert log.answers[0].lines == [2]
    with pytest.raises(ValueError, match="has no answers: 1 failed requests"):
        read(write_lines([failed]), "openai", options=["A", "B"])


def test_each_line_may_have_options_of_its_own(write_lines):
    lines = [
        chat(position("A", A=-0.1, B=-3.0), options=["A", "B"], answer="B"),
        chat(
            position("C", A=-2.0, B=-3.0, C=-0.2), options={"A": "x", "B": "y", "C": "z"}, answer=2
        ),
    ]
    log = read(write_lines(lines), "openai")
    assert log.counts.tolist() == [2, 3]
    assert log.labels.tolist() == [1, 2]
    assert log.predictions.class_names is None


def test_options_that_hold_little_of_the_probability_are_doubted(write_lines):
    line = chat(position("The", The=-0.1, A=-3.0, B=-4.0), label="B")
    with pytest.warns(UserWarning, match="the options hold 7 % of the probability on average"):
        read(write_lines([line]), "openai", options=["A", "B"])


LINE = chat(position("A", A=-0.1, B=-3.0), label="B")
PROCESSED = {"logprobs_mode": "processed_logprobs"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0},
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.7, "logprobs_mode": "raw_logprobs", "top_k": 5},
        PROCESSED | {"temperature": 1},
        PROCESSED | {"temperature": 1, "top_p": 1.0, "top_k": -1, "logit_bias": {}},
    ],
)
def test_log_probabilities_from_before_sampling_are_accepted(write_lines, settings):
    for place in ("request", "sampling_params", None):
        line = LINE | ({place: settings} if place else settings)
        assert len(read(write_lines([line]), "openai", options=["A", "B"]).labels) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            PROCESSED | {"temperature": 0.7},
            "sampling changed .* temperature 0.7.: run the server wi",
        ),
        (PROCESSED | {"temperature": 0}, "temperature 0"),
        (PROCESSED, "temperature unknown"),
        (PROCESSED | {"temperature": 1, "top_p": 0.9}, "top_p 0.9"),
        (PROCESSED | {"temperature": 1, "repetition_penalty": 1.1}, "repetition_penalty 1.1"),
        ({"logprobs_mode": "raw_logits"}, "raw_logits: these are no log-probabilities"),
    ],
)
def test_log_probabilities_that_sampling_changed_are_refused(write_lines, settings, message):
    batch = {"response": {"body": LINE}, "label": "B", "body": settings}
    for line in (LINE | settings, LINE | {"request": {"body": settings}}, batch):
        path = write_lines([LINE, line])
        with pytest.raises(ValueError, match=message) as caught:
            read(path, "openai", options=["A", "B"])
        assert str(caught.value).startswith(f"{path}: line 2: ")


@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"temperature": 1, "top_p": 0.9}])
def test_settings_of_sampling_without_a_mode_are_said(write_lines, settings):
    line = LINE | {"request": settings}
    with pytest.warns(UserWarning, match="1 lines were sampled with a temperature, top-p or the l"):
        read(write_lines([line, LINE]), "openai", options=["A", "B"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"choices": []} | {"label": "A"}, "no 'choices'"),
        (chat(label="A"), "request logprobs and top_logprobs"),
        ({"choices": [{"message": {}, "logprobs": None}], "label": "A"}, "request logprobs"),
        (LINE | {"choices": LINE["choices"] * 2}, "2 samples of an answer: request one"),
        (LINE | {"label": "E"}, "label must be one of the options .'A', 'B'., .* got 'E'"),
        (LINE | {"label": 2}, "its index from 0, got 2"),
        (LINE | {"label": True}, "got True"),
        (LINE | {"answer": "A"}, "label, answer are there: name it with --labels"),
        (chat(position("A", A=-0.1)), "the right option must be in one of labels, label"),
        (LINE | {"options": "AB"}, "options must be a list of tokens"),
        (LINE | {"options": 3}, "options must be a list of tokens"),
        (LINE | {"options": ["A", " A"]}, "2 to 1,000 different tokens"),
        (chat(position("A", A=0.5, B=-1.0), label="A"), "at most 0, got 0.5 of token 'A'"),
        (chat(position("A", A=math.nan, B=-1.0), label="A"), "got nan of token 'A'"),
        (chat({"token": "A", "logprob": -1}, label="A"), "no 'top_logprobs' of a token"),
    ],
)
def test_other_lines_are_refused_in_one_line_with_the_place(write_lines, line, message):
    path = write_lines([LINE, line])
    with pytest.raises(ValueError, match=message) as caught:
        read(path, "openai", options=["A", "B"])
    assert str(caught.value).startswith(f"{path}: line 2: ")


def test_without_options_the_message_says_how_to_name_them(write_lines):
    with pytest.raises(ValueError, match="give --names A,B,C,D, or a field options in each line"):
        read(write_lines([LINE]), "openai")
