"""Logs are untrusted input: a damaged one is read, or refused in one line that names it."""

import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrant.files import json_lines
from calibrant.language_models import FORMATS, read

OPTIONS = {"lm-eval": {}, "openai": {"options": ["A", "B"]}, "confidence": {}}
TOKEN = {"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": -3}]}
LINES = {
    "lm-eval": {
        "doc_id": 0,
        "target": "1",
        "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": " a"}, "g": {"a": "q", "b": " é"}},
        "filtered_resps": [["-1.5", "False"], ["-0.5", "True"]],
        "filter": "none",
        "acc": 1.0,
        "acc_norm": 1.0,
    },
    "openai": {
        "choices": [{"logprobs": {"content": [TOKEN]}}],
        "label": "B",
        "request": {"temperature": 1, "logprobs_mode": "raw_logprobs"},
    },
    "confidence": {"samples": ["a", "b", "a"], "answer": "a", "confidence": "85%", "correct": True},
}
# What may stand in place of any value.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**400),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([[], {}, [[]], {"": {}}, ["-1", "x"], "\ud800", "-inf", "[0]", "9" * 5000]),
)


def read_or_refuse(path, format):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = read(path, format, **OPTIONS[format]).predictions
        said = ""
    except ValueError as error:
        said = str(error)
    assert not said or str(path) in said
    assert "\n" not in said
    assert len(said.encode()) < 1000 + len(str(path))
    return not said


@st.composite
def changed(draw, value):
    """A JSON value of which a part, at any depth, is another or missing."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: each for name, each in value.items() if name != key}
        return rest if draw(st.integers(0, 4)) == 0 else rest | {key: draw(changed(value[key]))}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(changed(value[at])), *value[at + 1 :]]
    return draw(ODD)


@pytest.fixture
def damaged(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize("format", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_a_line_with_another_value_anywhere_is_read_or_refused(format, damaged, data):
    line = data.draw(changed(LINES[format]))
    damaged.write_text(json.dumps(line))
    read_or_refuse(damaged, format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_cut_anywhere_is_read_or_refused(format, damaged):
    good = json.dumps(LINES[format]).encode() + b"\n"
    for end in range(len(good)):
        damaged.write_bytes(good[:end])
        # Only the line break may be missing.
        assert read_or_refuse(damaged, format) == (end == len(good) - 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "line 1 is not UTF-8 text"),
        (b"{}\n\n[1]\n", "line 3 is no JSON object, but a list"),
        (b"12", "no JSON object, but a number"),
        (b"[" * 100_000 + b"]" * 100_000, "line 1 is nested too deeply"),
        (b'{"a": ' * 100_000, "line 1 is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1 is no complete JSON"),
        (b'{"doc_id": 1', "line 1 is no complete JSON; expected an object in each line, "),
        (b"\0\0\0", "line 1 is no complete JSON"),
    ],
)
def test_what_is_no_json_line_is_refused_with_its_number(damaged, content, message):
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        list(json_lines.records(damaged))
    assert str(caught.value).startswith(str(damaged))


def test_a_line_that_is_too_long_is_not_read_into_memory(damaged, monkeypatch):
    monkeypatch.setattr(json_lines, "MOST_BYTES", 1000)
    damaged.write_bytes(b'{"a": 1}\n{"a": "%b"}\n' % (b"x" * 2000))
    with pytest.raises(ValueError, match=r"line 2 is longer than 1000 bytes"):
        list(json_lines.records(damaged))


def test_a_byte_order_mark_and_blank_lines_are_skipped(damaged):
    damaged.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert list(json_lines.records(damaged)) == [(1, {"a": 1}), (4, {"a": 2})]
