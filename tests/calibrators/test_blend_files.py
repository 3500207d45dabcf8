"""Blends in files: every part comes back, and hostile files are refused."""

import json
import math
import os
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import Blend, Identity, TemperatureScaling, VectorScaling, storage
from calibrant.calibrators.blend import MOST_PARTS, blended
from calibrant.calibrators.records import digest_of
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.storage import load, method_of, save

ODD = 1.1000000000000003


@cache
def every_part(classes=5):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(800, classes)) * 2
    data = Predictions(logits, (logits / 1.5 + generator.gumbel(size=logits.shape)).argmax(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return blended([kind.fit(data) for kind in CALIBRATORS.values()])


def same(one, two):
    assert type(one) is type(two) is Blend
    assert (one.classes, one.origin, one.keeps_argmax) == (
        two.classes,
        two.origin,
        two.keeps_argmax,
    )
    assert len(one.parts) == len(two.parts)
    for part, other in zip(one.parts, two.parts, strict=True):
        assert type(part) is type(other)
        assert (part.classes, part.origin) == (other.classes, other.origin)
        for name, value in part.parameters.items():
            if isinstance(value, torch.Tensor):
                found = other.parameters[name]
                assert (value.dtype, value.stride()) == (found.dtype, found.stride())
                assert torch.equal(value, found)
            else:
                assert value == other.parameters[name]
    logits = torch.randn(100, one.classes) * 10
    torch.testing.assert_close(one(logits), two(logits), rtol=1e-5, atol=1e-5)


def test_every_part_comes_back_bit_by_bit(tmp_path):
    save(every_part(), tmp_path / "cal.json")
    same(load(tmp_path / "cal.json"), every_part())
    assert os.listdir(tmp_path) == ["cal.json"]
    assert method_of(load(tmp_path / "cal.json")) == "blend"


def test_every_part_comes_back_bit_by_bit_from_one_file_of_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "INLINE_NUMBERS", 0)
    save(every_part(), tmp_path / "cal.json")
    same(load(tmp_path / "cal.json"), every_part())
    assert len(os.listdir(tmp_path)) == 2


def test_numbers_of_all_parts_count_for_what_is_large(tmp_path, monkeypatch):
    scale = torch.ones(5, dtype=torch.float64)
    part = VectorScaling(classes=5, scale=scale, bias=scale)
    monkeypatch.setattr(storage, "INLINE_NUMBERS", 15)
    save(Blend(classes=5, parts=(part,)), tmp_path / "one.json")
    assert os.listdir(tmp_path) == ["one.json"]
    save(Blend(classes=5, parts=(part, replace(part, scale=2 * scale))), tmp_path / "two.json")
    assert len(os.listdir(tmp_path)) == 3
    assert [float(each.scale[0]) for each in load(tmp_path / "two.json").parts] == [1.0, 2.0]


def test_a_list_of_numbers_is_one_line_also_in_a_part(tmp_path):
    weights = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    kind = CALIBRATORS["ensemble_temperature"]
    parts = (Identity(classes=3), kind(classes=3, temperature=ODD, weights=weights))
    save(Blend(classes=3, parts=parts), tmp_path / "cal.json")
    lines = (tmp_path / "cal.json").read_text().splitlines()
    assert '            "values": [0.25, 0.75, 0.0]' in lines
    assert '    "parts": [' in lines


def test_a_part_that_could_not_be_read_back_is_not_written(tmp_path):
    scale = torch.ones(3, dtype=torch.float64)
    bad = VectorScaling(classes=3, scale=scale, bias=torch.zeros(3, dtype=torch.float64))
    scale[1] = math.nan
    with pytest.raises(ValueError, match=r"cannot save blend: 1.scale holds numbers that are not"):
        save(Blend(classes=3, parts=(Identity(classes=3), bad)), tmp_path / "cal.json")
    assert os.listdir(tmp_path) == []


PART = {"method": "temperature", "parameters": {"temperature": ODD}, "fit": None}
NOTHING = {"method": "identity", "parameters": {}, "fit": None}
VECTOR = {
    "method": "vector",
    "parameters": {
        name: {"dtype": "float64", "shape": [2], "values": [1.0, 2.0]} for name in ("scale", "bias")
    },
    "fit": None,
}
GOOD = {
    "format": "calibrant calibrator",
    "schema": 2,
    "calibrant": "0.1.0",
    "method": "blend",
    "classes": 3,
    "parameters": {"parts": [NOTHING, PART]},
    "fit": None,
}


def write(path, record):
    path.write_text(json.dumps(record | {"sha256": digest_of(record)}))


def parts(*given):
    return GOOD | {"parameters": {"parts": list(given)}}


def test_the_good_record_is_good(tmp_path):
    write(tmp_path / "cal.json", GOOD)
    found = load(tmp_path / "cal.json")
    expected = TemperatureScaling(classes=3, temperature=ODD)
    same(found, Blend(classes=3, parts=(Identity(classes=3), expected)))


NESTED = {"method": "blend", "parameters": {"parts": [PART]}, "fit": None}
BAD = {
    "nested": (parts(PART, NESTED), "part 1: a blend cannot hold a blend"),
    "none": (parts(), f"a blend has 1 to {MOST_PARTS} parts, got 0"),
    "many": (
        parts(*[NOTHING] * (MOST_PARTS + 1)),
        f"1 to {MOST_PARTS} parts, got {MOST_PARTS + 1}",
    ),
    "parts object": (GOOD | {"parameters": {"parts": {"0": PART}}}, "parts must be a list"),
    "parameters list": (GOOD | {"parameters": [PART]}, "parameters must be an object"),
    "no parts": (GOOD | {"parameters": {}}, "parameters has no 'parts'"),
    "extra": (
        GOOD | {"parameters": {"parts": [PART], "weights": [1]}},
        "unknown key 'weights' in parameters",
    ),
    "part number": (parts(PART, 3), "part 1 must be an object, got 3"),
    "part of other classes": (parts(PART | {"classes": 4}), "unknown key 'classes' in part 0"),
    "part with tensors": (parts(PART | {"tensors": {}}), "unknown key 'tensors' in part 0"),
    "part without fit": (
        parts({"method": "identity", "parameters": {}}),
        "part 0 has no 'fit'",
    ),
    "method": (parts(PART | {"method": "os.system"}), "part 0: no method 'os.system'; expected"),
    "close method": (parts(PART | {"method": "temprature"}), "did you mean temperature"),
    "method list": (parts(PART | {"method": ["blend"]}), "part 0: method must be a string"),
    "parameters text": (parts(PART | {"parameters": "x"}), "part 0: parameters must be an obj"),
    "parameter missing": (parts(PART | {"parameters": {}}), "part 0: parameters has no 'temper"),
    "parameter text": (
        parts(NOTHING, PART | {"parameters": {"temperature": "1"}}),
        "part 1: parameters.temperature must be a number, got '1'",
    ),
    "parameter negative": (
        parts(PART | {"parameters": {"temperature": -1.0}}),
        "parameters do not fit: temperature must",
    ),
    "numbers of other classes": (parts(NOTHING, VECTOR), "parameters do not fit: scale must"),
    "fit": (parts(PART | {"fit": {"x": 1}}), "unknown key 'x' in fit"),
    "own fit": (GOOD | {"fit": 3}, "fit must be an object"),
    "blend of a name": (GOOD | {"method": "blnd"}, "no method 'blnd'; did you mean blend"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("record", "words"), BAD.values(), ids=BAD)
def test_a_hostile_blend_is_refused_in_one_line(tmp_path, record, words):
    path = tmp_path / "bad.json"
    write(path, record)
    with pytest.raises(ValueError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_blends_nested_deeply_are_refused_at_once(tmp_path):
    record = NESTED
    for _ in range(200):
        record = {"method": "blend", "parameters": {"parts": [record] * 2}, "fit": None}
        record["parameters"]["parts"][1] = PART
    write(tmp_path / "bad.json", parts(record))
    with pytest.raises(ValueError, match="part 0: a blend cannot hold a blend"):
        load(tmp_path / "bad.json")


def test_too_many_parts_are_refused_before_any_is_made(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(storage, "_made", lambda *given: made.append(given))
    record = parts(*[NOTHING] * 20_000) | {"classes": storage.MAX_CLASSES}
    write(tmp_path / "bad.json", record)
    with pytest.raises(ValueError, match=f"1 to {MOST_PARTS} parts, got 20000"):
        load(tmp_path / "bad.json")
    assert not made


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_of_parts_are_matched_by_position(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "INLINE_NUMBERS", 0)
    save(every_part(), tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text())
    names = [part["method"] for part in record["parameters"]["parts"]]
    swapped = names.index("vector"), names.index("platt")
    listed = record["parameters"]["parts"]
    first, second = (listed[at] for at in swapped)
    listed[swapped[0]], listed[swapped[1]] = second, first
    write(tmp_path / "cal.json", record)
    with pytest.raises(ValueError, match=r"no|need|holds"):
        load(tmp_path / "cal.json")
