"""Calibrator files: parameters are restored bit by bit; invalid and changed files are refused."""

import hashlib
import json
import math
import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import Predictions, files
from calibrant.calibrators import (
    Blend,
    Calibrator,
    Fit,
    Identity,
    PriorShift,
    QuadraticScaling,
    TemperatureScaling,
    records,
    storage,
)
from calibrant.calibrators.blend import MOST_PARTS, blended
from calibrant.calibrators.masks import log_softmax, mask_of
from calibrant.calibrators.records import digest_of
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.storage import calibrator_name, load, save

# A float that loses its last digit if it is rounded.
ODD = 1.1000000000000003
SHA = "0" * 64


@cache
def fitted(name, classes, n=800):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, classes)) * 2
    labels = (logits / 1.5 + generator.gumbel(size=logits.shape)).argmax(1)
    if name == "blend":
        parts = [fitted(each, classes) for each in CALIBRATORS]
        return blended(parts, exponents=[0.0, *np.linspace(0, 0.2, len(parts) - 1)])
    if name == "prior_shift":
        target = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
        inside = fitted("vector", classes)
        return PriorShift.of_priors(inside.origin.class_frequencies, target, calibrator=inside)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CALIBRATORS[name].fit(Predictions(logits, labels))


def parts_of(calibrator):
    if isinstance(calibrator, PriorShift):
        return (*parts_of(calibrator.calibrator), calibrator)
    return calibrator.parts if isinstance(calibrator, Blend) else (calibrator,)


def flat(calibrator):
    """A calibrator as plain values; the layout of tensors selects a matrix product."""
    values = [type(calibrator), calibrator.classes, calibrator.origin]
    for part in parts_of(calibrator):
        values += [type(part), part.classes, part.origin]
        for name, value in part.parameters.items():
            plain = None if isinstance(value, Calibrator) else value
            if isinstance(value, torch.Tensor):
                plain = value.dtype, value.shape, value.stride(), value.tolist()
            values.append((name, plain))
    return values


def same(one, two):
    assert flat(one) == flat(two)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        logits = torch.randn(100, one.classes, dtype=dtype) * 10
        torch.testing.assert_close(one(logits), two(logits), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", [*CALIBRATORS, "blend", "prior_shift"])
class TestEveryCalibrator:
    def test_is_restored_bit_by_bit(self, name, classes, tmp_path, monkeypatch):
        save(fitted(name, classes), tmp_path / "cal.json")
        assert os.listdir(tmp_path) == ["cal.json"]
        found = load(tmp_path / "cal.json")
        same(found, fitted(name, classes))
        assert calibrator_name(found) == name
        monkeypatch.setattr(storage, "INLINE_NUMBERS", 0)
        save(fitted(name, classes), tmp_path / "cal.json")
        same(load(tmp_path / "cal.json"), fitted(name, classes))
        values = [v for part in parts_of(found) for v in part.parameters.values()]
        has_tensors = any(isinstance(value, torch.Tensor) for value in values)
        assert len(os.listdir(tmp_path)) == 1 + has_tensors

    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_every_parameter_is_required_and_checked(self, name, classes, tmp_path):
        save(fitted(name, classes), tmp_path / "cal.json")
        record = json.loads((tmp_path / "cal.json").read_text())
        for key, value in record["parameters"].items():
            wrong = [None, "x", True, [], {}]
            if "shape" in (value if isinstance(value, dict) else ()):
                size = math.prod(value["shape"])
                wrong += [
                    value | {"shape": [size + 1]},
                    value | {"values": value["values"] + value["values"][-1:]},
                    value | {"dtype": "int8"},
                    value | {"shape": [size, 1, 1, 1], "values": value["values"]},
                    {"dtype": value["dtype"], "shape": [0], "values": []},
                ]
            # Files of earlier releases have a plain mean.
            optional = key in ("weights", "exponents")
            for each in wrong[:-2] if optional else wrong:
                refused(tmp_path, record | {"parameters": record["parameters"] | {key: each}})
            if optional:
                continue
            rest = {k: v for k, v in record["parameters"].items() if k != key}
            refused(tmp_path, record | {"parameters": rest})


def signed(record):
    """The record with a valid digest, which anybody can compute."""
    return record | {"sha256": digest_of(record)}


def refused(folder, record, words="bad.json: "):
    path = folder / "bad.json"
    path.write_text(record if isinstance(record, str) else json.dumps(signed(record)))
    with pytest.raises(ValueError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(path))


FIT = {"examples": 10, "sha256": SHA, "converged": True, "gradient_norm": 1e-9, "remark": ""}
GOOD = {
    "format": "calibrant calibrator",
    "schema": 2,
    "calibrant": "0.1.0",
    "method": "temperature",
    "classes": 3,
    "parameters": {"temperature": ODD},
    "fit": FIT,
}
PART = {"method": "temperature", "parameters": {"temperature": ODD}, "fit": None}
NOTHING = {"method": "identity", "parameters": {}, "fit": None}
NESTED = {"method": "blend", "parameters": {"parts": [PART]}, "fit": None}
PAIR = {"dtype": "float64", "shape": [2], "values": [1.0, 2.0]}
VECTOR = {"method": "vector", "parameters": {"scale": PAIR, "bias": PAIR}, "fit": None}


def text(**changes):
    return json.dumps(signed(GOOD | changes))


def number(written):
    """A file whose temperature is written in another way, with its digest."""
    content = text().replace(repr(ODD), written)
    record = json.loads(content)
    return content.replace(record["sha256"], digest_of(record))


def blend(*parts, **changes):
    return text(method="blend", **({"parameters": {"parts": list(parts)}, "fit": None} | changes))


def test_valid_records_are_read(tmp_path):
    (tmp_path / "cal.json").write_text(text())
    found = load(tmp_path / "cal.json")
    assert found.parameters == {"temperature": ODD}
    assert found.origin == Fit(10, SHA, True, 1e-9, "")
    (tmp_path / "cal.json").write_text(text(fit=FIT | {"scores": "lm-eval"}))
    assert load(tmp_path / "cal.json").origin.scores == "lm-eval"
    (tmp_path / "cal.json").write_text(blend(NOTHING, PART))
    parts = (Identity(classes=3), TemperatureScaling(classes=3, temperature=ODD))
    same(load(tmp_path / "cal.json"), Blend(classes=3, parts=parts))


BAD = {
    "empty": ("", "not valid JSON: .* line 1, column 1"),
    "cut short": (text()[:-5], "not valid JSON"),
    "binary": ("\x00\x01", "not valid JSON"),
    "list": ("[]", "not a calibrator file"),
    "other format": (text(format="x"), "not a calibrator file"),
    "deep": ("[" * 200_000, "nested too deeply|not valid JSON"),
    "twice": (text().replace('"schema": 2', '"schema": 2, "schema": 2'), "duplicate keys among"),
    "new schema": (text(schema=3), "schema 3, this calibrant reads 1 and 2"),
    "schema true": (text(schema=True), "schema must be an integer, got True"),
    "unknown key": (text(evil=1), "unknown key 'evil' in the file; expected one of format"),
    "close key": (text(clases=1), "unknown key 'clases' in the file; did you mean classes"),
    "no fit": (
        json.dumps(signed({k: v for k, v in GOOD.items() if k != "fit"})),
        "the file has no 'fit'",
    ),
    "close method": (text(method="temprature"), "'temprature'; did you mean temperature"),
    "unknown method": (text(method="os.system"), "no calibrator 'os.system'; expected one of"),
    "method list": (text(method=["temperature"]), "method must be a string, got a list"),
    "no classes": (text(classes=0), r"classes must lie in \[2, 1,000,000\], got 0"),
    "classes float": (text(classes=3.0), "classes must be an integer, got 3.0"),
    "NaN": (text(parameters={"temperature": math.nan}), "positive and finite, got nan"),
    "overflow": (number("1e999"), "positive and finite, got inf"),
    "long number": (text().replace(repr(ODD), "9" * 5000), "bad.json"),
    "large integer": (number("9" * 400), "more digits than a float"),
    "negative": (text(parameters={"temperature": -1.0}), "invalid parameters: temperature must"),
    "text": (text(parameters={"temperature": "1"}), "temperature must be a number, got '1'"),
    "parameter missing": (text(parameters={}), "parameters has no 'temperature'"),
    "parameter extra": (
        text(parameters={"temperature": 1.0, "__class__": 1.0}),
        "unknown key '__class__' in parameters",
    ),
    "fit extra": (text(fit=FIT | {"x": 1}), "unknown key 'x' in fit"),
    "fit count": (text(fit=FIT | {"examples": 1.5}), "fit.examples must be an integer"),
    "fit flag": (text(fit=FIT | {"converged": 1}), "fit.converged must be true or false"),
    "frequencies of other classes": (
        text(fit=FIT | {"class_frequencies": [0.5, 0.5]}),
        "fit.class_frequencies has 2 entries for 3 classes",
    ),
    "frequencies": (
        text(fit=FIT | {"class_frequencies": [0.5, 0.4, 0.2]}),
        "class_frequencies must not be negative and sum to 1",
    ),
    "negative frequency": (
        text(fit=FIT | {"class_frequencies": [0.7, 0.7, -0.4]}),
        "class_frequencies must not be negative",
    ),
    "frequency NaN": (
        text(fit=FIT | {"class_frequencies": [math.nan, 0.5, 0.5]}),
        "class_frequencies must not be negative and sum to 1",
    ),
    "class names": (text(fit=FIT | {"class_names": ["a", "b", "b"]}), "must be different"),
    "class name": (text(fit=FIT | {"class_names": ["a", "b", "\x1b[31m"]}), "must be printable"),
    "scores": (text(fit=FIT | {"scores": 1}), "fit.scores must be a string, got 1"),
    "class number": (text(fit=FIT | {"class_names": ["a", "b", 3]}), "must be a string, got 3"),
    "terminal codes": (text(method="\x1b[31m" * 50), "no calibrator"),
    "too long": (text() + " " * storage.MAX_BYTES, "more than 4.0 MB"),
    "nested blend": (blend(PART, NESTED), "part 1: no calibrator 'blend'"),
    "no parts": (blend(), f"a blend has 1 to {MOST_PARTS} parts, got 0"),
    "many parts": (blend(*[NOTHING] * 20_000), f"1 to {MOST_PARTS} parts, got 20000"),
    "parts missing": (blend(parameters={}), "parameters has no 'parts'"),
    "weights": (
        blend(parameters={"parts": [PART], "weights": [0.5, 0.5]}),
        "a blend of 1 parts needs 1 weights, and 1 exponents or none",
    ),
    "negative exponents": (
        blend(parameters={"parts": [PART, PART], "exponents": [-1, 1]}),
        "weights and exponents of a blend must be finite and at least 0",
    ),
    "weights of a blend in words": (
        blend(parameters={"parts": [PART], "weights": ["all"]}),
        "weights must be a number",
    ),
    "part of other classes": (blend(PART | {"classes": 4}), "unknown key 'classes' in part 0"),
    "part without fit": (blend({"method": "identity", "parameters": {}}), "part 0 has no 'fit'"),
    "part parameter": (
        blend(NOTHING, PART | {"parameters": {"temperature": "1"}}),
        "part 1: parameters.temperature must be a number, got '1'",
    ),
    "tensors of other classes": (blend(NOTHING, VECTOR), "invalid parameters: scale must"),
    "close to blend": (text(method="blnd"), "no calibrator 'blnd'; did you mean blend"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_an_invalid_file_is_refused_in_one_line(tmp_path, content, words):
    refused(tmp_path, content, words)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_other_encodings_and_special_files_are_refused(tmp_path):
    (tmp_path / "bad.json").write_bytes(text().encode("utf-16"))
    with pytest.raises(ValueError, match="not a calibrator file: not UTF-8 text; pass a file that"):
        load(tmp_path / "bad.json")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "pipe.json"):
        with pytest.raises(OSError, match="not a file"):
            load(path)


class LargestTensor(TorchDispatchMode):
    """Record the largest number of elements of a result."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


PAIR_OF_KNOTS = {"knots": PAIR, "values": PAIR | {"values": [0.2, 0.7]}, "slope": 0.1}
THIRD = {"dtype": "float64", "shape": [3], "values": [0.5, 0.25, 0.25]}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("identity", {}),
        ("temperature", {"temperature": ODD}),
        ("focal_temperature", {"temperature": ODD, "gamma": 1.0}),
        ("ensemble_temperature", {"temperature": ODD, "weights": THIRD}),
        ("irm", PAIR_OF_KNOTS),
        ("vector", VECTOR["parameters"]),
        ("platt", {"coefficients": PAIR | {"shape": [1, 2]}}),
        ("blend", {"parts": [PART, NOTHING]}),
    ],
)
def test_a_small_file_that_claims_a_million_classes_makes_no_large_tensors(
    name, parameters, tmp_path
):
    path = tmp_path / "cal.json"
    path.write_text(text(method=name, classes=10**6, parameters=parameters))
    refuses = pytest.raises(ValueError, match=r"invalid parameters: .* shape")
    with LargestTensor() as largest, refuses if name in ("vector", "platt") else nullcontext():
        assert load(path).classes == 10**6
    assert largest.elements < 10_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Calibrator):
    """A calibrator with all types of parameters."""

    scale: torch.Tensor
    counts: torch.Tensor
    slope: float
    mode: str

    keeps_argmax = True

    def __post_init__(self):
        if tuple(self.scale.shape) != (self.classes, self.classes):
            raise ValueError(f"scale must be (k, k), got {tuple(self.scale.shape)}")

    @classmethod
    def fit(cls, predictions):
        k = predictions.classes
        scale, counts = torch.eye(k, dtype=torch.float64), torch.bincount(predictions.labels)
        return cls(classes=k, scale=scale, counts=counts, slope=1.0, mode="identity")

    def log_probs(self, logits):
        return log_softmax(logits.nan_to_num(neginf=0) @ self.scale.to(logits), mask_of(logits))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setitem(CALIBRATORS, "table", Table)
    return Table(
        classes=300,
        scale=torch.randn(300, 300, dtype=torch.float64),
        counts=torch.tensor([2**62 + 1, -3]),
        slope=ODD,
        mode="a [ b",
        origin=Fit(5, SHA, False, math.inf, "no [ end"),
    )


@pytest.fixture
def small(table):
    return replace(table, classes=2, scale=torch.eye(2, dtype=torch.float64), origin=None)


def test_large_tensors_have_their_own_file_named_by_its_digest(tmp_path, table):
    Predictions([[1.0, 0.0]], [0]).save(tmp_path / "cal.safetensors")
    save(table, tmp_path / "cal.json")
    assert files.names(tmp_path / "cal.safetensors") == ["labels", "logits"]
    (beside,) = tmp_path.glob("cal.*.safetensors")
    assert (tmp_path / "cal.json").stat().st_size < 2000
    record = json.loads((tmp_path / "cal.json").read_text())
    digest = hashlib.sha256(beside.read_bytes()).hexdigest()
    assert record["tensors"] == {"file": beside.name, "sha256": digest}
    assert beside.name == f"cal.{digest[:16]}.safetensors"
    found = load(tmp_path / "cal.json")
    assert found.origin.remark == "no [ end"
    # JSON has no infinity.
    assert math.isnan(found.origin.gradient_norm)
    same(replace(found, origin=None), replace(table, origin=None))


def test_a_fit_records_what_it_saw_of_the_classes(tmp_path):
    names = ["cat", "dog", "Katze\n"]
    for given, recorded in ((["cat", "dog", "Käfer"], ("cat", "dog", "Käfer")), (names, None)):
        p = Predictions(torch.eye(3), [0, 1, 2], weights=[2, 1, 1], class_names=given)
        made = Identity.fit(p)
        assert made.origin.class_frequencies == (0.5, 0.25, 0.25)
        assert made.origin.class_names == recorded
        save(made, tmp_path / "cal.json")
        assert load(tmp_path / "cal.json").origin == made.origin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Identity.fit(Predictions(torch.eye(1001), [0] * 1001)).origin.class_names is None


def test_the_tensors_of_all_parts_count_as_large(tmp_path, monkeypatch):
    part = fitted("vector", 5)
    monkeypatch.setattr(storage, "INLINE_NUMBERS", 15)
    save(Blend(classes=5, parts=(part,)), tmp_path / "one.json")
    assert os.listdir(tmp_path) == ["one.json"]
    save(Blend(classes=5, parts=(part, replace(part, scale=2 * part.scale))), tmp_path / "two.json")
    assert len(os.listdir(tmp_path)) == 3
    first, second = load(tmp_path / "two.json").parts
    assert torch.equal(2 * first.scale, second.scale)


def test_integers_and_text_are_restored_and_lists_are_on_one_line(tmp_path, small):
    save(small, tmp_path / "cal.json")
    same(load(tmp_path / "cal.json"), small)
    assert '"values": [1.0, 0.0, 0.0, 1.0]' in (tmp_path / "cal.json").read_text()
    save(fitted("blend", 2), tmp_path / "cal.json")
    lines = (tmp_path / "cal.json").read_text().splitlines()
    assert '    "parts": [' in lines
    assert '            "shape": [1, 2],' in lines


def test_tensors_are_written_before_the_file_that_names_them(tmp_path, table, monkeypatch):
    save(table, tmp_path / "cal.json")
    replaced = []
    replace_file = os.replace

    def killed(source, target):
        if str(target).endswith(".json"):
            raise KeyboardInterrupt
        replaced.append(target)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save(replace(table, slope=3.0, scale=table.scale + 1), tmp_path / "cal.json")
    assert len(replaced) == 1
    assert load(tmp_path / "cal.json").slope == ODD


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_damaged_or_missing_tensors_are_refused(tmp_path, table):
    save(table, tmp_path / "bad.json")
    (beside,) = tmp_path.glob("*.safetensors")
    content = bytearray(beside.read_bytes())
    content[-1] ^= 1
    beside.write_bytes(content)
    record = json.loads((tmp_path / "bad.json").read_text())
    refused(tmp_path, record, "sha256 differs")
    half = bytes(content[: len(content) // 2])
    beside.write_bytes(half)
    tensors = {"file": beside.name, "sha256": hashlib.sha256(half).hexdigest()}
    refused(tmp_path, record | {"tensors": tensors}, "not a valid safetensors file")
    beside.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    good = record | {"tensors": {"file": beside.name, "sha256": digest}}
    for key, change in {
        "scale": {"dtype": "float64", "shape": [90_000]},
        "counts": {"dtype": "float64", "shape": [2]},
    }.items():
        wrong = good["parameters"] | {key: change}
        refused(tmp_path, good | {"parameters": wrong}, "its file holds")
    beside.unlink()
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "bad.json")


NAMES = ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..\\x.safetensors"]
NAMES += ["C:x.safetensors", "..", "", "x.pt", "a\x00.safetensors", 3]


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_are_read_from_the_same_folder_only(tmp_path, table):
    save(table, tmp_path / "bad.json")
    record = json.loads((tmp_path / "bad.json").read_text())
    for name in NAMES:
        record["tensors"]["file"] = name
        refused(tmp_path, record, "tensors.file must be")


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_invalid_tensors_are_refused(tmp_path, small):
    save(small, tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text())
    good = record["parameters"]["scale"]
    for wrong, words in [
        (good | {"shape": [4]}, "scale must be"),
        (good | {"shape": [2, 3]}, "has 4 values"),
        (good | {"shape": [-2, -2]}, "scale: values do not fit float64 of shape"),
        (good | {"shape": [2, True]}, "shape must be an integer"),
        (good | {"shape": [10**9] * 4, "values": []}, "has 0 values"),
        (good | {"values": [1.0, 0.0, 0.0, "x"]}, "values must be a number, got 'x'"),
        (good | {"values": [1.0, 0.0, 0.0, [1.0]]}, "values must be a number, got a list"),
        (good | {"values": [1.0, 0.0, 0.0, math.inf]}, "no probabilities"),
        (good | {"dtype": "int64"}, "values must be an integer, got 1.0"),
        (good | {"dtype": "int64", "values": [10**30, 1, 1, 1]}, "scale: values do not fit int64"),
    ]:
        changed = record | {"parameters": record["parameters"] | {"scale": wrong}}
        refused(tmp_path, changed, words)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_of_parts_are_matched_by_position(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "INLINE_NUMBERS", 0)
    save(fitted("blend", 5), tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text())
    parts = record["parameters"]["parts"]
    names = [part["method"] for part in parts]
    one, two = names.index("vector"), names.index("platt")
    parts[one], parts[two] = parts[two], parts[one]
    refused(tmp_path, record, "has no")


def test_a_calibrator_that_could_not_be_loaded_is_not_saved(tmp_path, table, small, monkeypatch):
    with pytest.raises(ValueError, match=r"saved as .json"):
        save(table, tmp_path / "cal.pt")
    broken = replace(small, scale=small.scale * math.nan)
    for each in (broken, Blend(classes=2, parts=(Identity(classes=2), broken))):
        with pytest.raises(ValueError, match=r"cannot save table: .* no probabilities for float32"):
            save(each, tmp_path / "cal.json")
    monkeypatch.delitem(CALIBRATORS, "table")
    with pytest.raises(ValueError, match="Table is not in CALIBRATORS"):
        save(table, tmp_path / "cal.json")
    assert os.listdir(tmp_path) == []


def test_only_large_tensors_need_safetensors(tmp_path, table, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    save(TemperatureScaling(classes=2, temperature=ODD), tmp_path / "cal.json")
    with pytest.raises(ImportError, match=r"pip install 'calibrant\[audit\]'"):
        save(table, tmp_path / "large.json")
    assert os.listdir(tmp_path) == ["cal.json"]


def accepted(path, content, expected):
    """Whether a changed file is read; then its parameters must be those of the original."""
    # In place: thousands of new files would be slow.
    with open(path, "r+b") as handle:
        handle.write(content)
        handle.truncate()
    try:
        found = load(path)
    except ValueError:
        return False
    assert flat(found) == expected, content
    return True


# One of each kind of file: a number, tensors of one and two axes, integers, parts.
@pytest.mark.parametrize("name", ["temperature", "matrix", "isotonic", "blend"])
def test_every_changed_character_is_refused_or_changes_nothing(name, tmp_path, monkeypatch):
    # Only the digest may refuse, not invalid parameters.
    monkeypatch.setattr(storage, "check_probabilities", lambda calibrator: None)
    path = tmp_path / "cal.json"
    if name == "blend":
        parts = fitted("temperature", 2, 12), replace(fitted("platt", 2, 12), origin=None)
        given = Blend(classes=2, parts=parts)
    else:
        given = fitted(name, 2, 12)
    save(given, path)
    content, expected = path.read_bytes(), flat(given)
    for at, byte in enumerate(content):
        digit = b"0123456789"[(byte - 47) % 10] if chr(byte).isdigit() else byte ^ 2
        changes = [bytes([digit]), b" "]
        if name == "temperature":
            # Lost, doubled, and the end of the file.
            changes += [b"", bytes([byte] * 2), None]
        for other in changes:
            changed = content[:at] + (b"" if other is None else other + content[at + 1 :])
            unchanged = changed == content
            # The same values: other whitespace, or other digits of the same number.
            same_values = unchanged or not accepted(path, changed, expected)
            assert same_values or json.loads(changed) == json.loads(content)


def written(tmp_path, record):
    path = tmp_path / "cal.json"
    path.write_text(json.dumps(record))
    return path


def test_layout_and_order_of_keys_do_not_matter(tmp_path):
    path = written(tmp_path, dict(reversed(signed(GOOD).items())))
    assert load(path).parameters == {"temperature": ODD}


def test_a_file_of_schema_1_is_read_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="cal.json: schema 1 has no digest.*load and save"):
        found = load(written(tmp_path, GOOD | {"schema": 1}))
    assert found.parameters == {"temperature": ODD}
    refused(tmp_path, GOOD | {"schema": 1}, "unknown key 'sha256'")


def test_a_file_of_schema_2_with_another_or_no_digest_is_refused(tmp_path):
    words = r"sha256 differs: the file was changed .* restore it, or"
    changed = signed(GOOD) | {"parameters": {"temperature": 9.5}}
    for wrong in (changed, *(GOOD | {"sha256": each} for each in (None, 3, "", ["x"]))):
        refused(tmp_path, json.dumps(wrong), words)
    refused(tmp_path, json.dumps(GOOD), "the file has no 'sha256'")


@pytest.mark.parametrize(
    ("name", "key", "number"),
    [
        ("temperature", "temperature", 5e-324),
        ("temperature", "temperature", 1e-300),
        ("temperature", "temperature", 1e-12),
        ("temperature", "temperature", 1e39),
        ("focal_temperature", "temperature", 1e-300),
        ("ensemble_temperature", "temperature", 1e-300),
        ("structured_vector", "temperature", 1e-300),
        ("vector", "scale", 1e300),
        ("vector", "bias", 1e300),
        ("matrix", "weight", 1e300),
        ("platt", "coefficients", 1e300),
    ],
)
@pytest.mark.filterwarnings("ignore:.*has no digest")
def test_parameters_that_overflow_are_refused(tmp_path, name, key, number):
    values = dict(fitted(name, 2).parameters)
    if isinstance(values[key], torch.Tensor):
        values[key] = values[key].clone()
        values[key].view(-1)[0] = number
    else:
        values[key] = number
    given = {key: records.encoded(value, inline=True) for key, value in values.items()}
    record = GOOD | {"method": name, "classes": 2, "parameters": given}
    words = r"no probabilities for float(32|64) logits of"
    refused(tmp_path, record, words)
    refused(tmp_path, json.dumps(record | {"schema": 1}), words)


def test_only_parameters_that_overflow_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"cannot save temperature: .* size 1e\+30; rescale the"):
        save(TemperatureScaling(classes=2, temperature=1e-12), tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())
    for name in CALIBRATORS:
        storage.check_probabilities(fitted(name, 2, 12))
    straight = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    storage.check_probabilities(QuadraticScaling(classes=2, coefficients=straight))
