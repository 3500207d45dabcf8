import hashlib
import json
import math
import os
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions, files
from calibrant.calibrators import Calibrator, Fit, TemperatureScaling, storage
from calibrant.calibrators.masks import log_softmax, mask_of
from calibrant.calibrators.records import digest_of
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.storage import load, save

# Numbers that a careless writer rounds.
ODD = 1.1000000000000003


@cache
def fitted(name, classes):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(800, classes)) * 2
    labels = (logits / 1.5 + generator.gumbel(size=logits.shape)).argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CALIBRATORS[name].fit(Predictions(logits, labels))


def same(one, two):
    assert type(one) is type(two)
    assert one.classes == two.classes
    assert one.origin == two.origin
    assert one.parameters.keys() == two.parameters.keys()
    for name, value in one.parameters.items():
        other = two.parameters[name]
        if isinstance(value, torch.Tensor):
            # The same bits in the same layout: another one would take another matrix product.
            assert (value.dtype, value.stride()) == (other.dtype, other.stride())
            assert torch.equal(value, other)
        else:
            assert value == other
    logits = torch.randn(100, one.classes) * 10
    torch.testing.assert_close(one(logits), two(logits), rtol=1e-5, atol=1e-5)
    wide = logits.double()
    torch.testing.assert_close(one(wide), two(wide), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", CALIBRATORS)
class TestEveryCalibrator:
    def test_comes_back_bit_by_bit(self, name, classes, tmp_path):
        save(fitted(name, classes), tmp_path / "cal.json")
        same(load(tmp_path / "cal.json"), fitted(name, classes))
        assert os.listdir(tmp_path) == ["cal.json"]

    def test_comes_back_bit_by_bit_from_a_file_of_tensors(
        self, name, classes, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(storage, "INLINE_NUMBERS", 0)
        save(fitted(name, classes), tmp_path / "cal.json")
        same(load(tmp_path / "cal.json"), fitted(name, classes))
        has_tensors = any(
            isinstance(value, torch.Tensor) for value in fitted(name, classes).parameters.values()
        )
        assert len(os.listdir(tmp_path)) == 1 + has_tensors

    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_every_parameter_is_needed_and_checked(self, name, classes, tmp_path):
        save(fitted(name, classes), tmp_path / "cal.json")
        record = json.loads((tmp_path / "cal.json").read_text())
        for key, value in record["parameters"].items():
            wrong = [None, "x", True, [], {}]
            if isinstance(value, dict):
                size = math.prod(value["shape"])
                wrong += [
                    value | {"shape": [size + 1]},
                    value | {"values": value["values"] + value["values"][-1:]},
                    value | {"dtype": "int8"},
                    value | {"shape": [size, 1, 1, 1], "values": value["values"]},
                    {"dtype": value["dtype"], "shape": [0], "values": []},
                ]
            for each in wrong:
                refused(tmp_path, record | {"parameters": record["parameters"] | {key: each}})
            kept = {k: v for k, v in record["parameters"].items() if k != key}
            refused(tmp_path, record | {"parameters": kept})


def signed(record):
    """The record with a digest that is right, as a stranger could write it."""
    return record | {"sha256": digest_of(record)}


def refused(folder, record, words="bad.json: "):
    path = folder / "bad.json"
    path.write_text(record if isinstance(record, str) else json.dumps(signed(record)))
    with pytest.raises(ValueError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(path))


SHA = "0" * 64
GOOD = {
    "format": "calibrant calibrator",
    "schema": 2,
    "calibrant": "0.1.0",
    "method": "temperature",
    "classes": 3,
    "parameters": {"temperature": ODD},
    "fit": {
        "examples": 10,
        "sha256": SHA,
        "converged": True,
        "gradient_norm": 1e-9,
        "remark": "",
    },
}


def test_the_good_record_is_good(tmp_path):
    (tmp_path / "cal.json").write_text(text())
    found = load(tmp_path / "cal.json")
    assert found.parameters == {"temperature": ODD}
    assert found.origin == Fit(10, SHA, True, 1e-9, "")


def text(**changes):
    return json.dumps(signed(GOOD | changes))


def number(written):
    """A file whose temperature is written in another way, with the digest of that."""
    content = text().replace(repr(ODD), written)
    record = json.loads(content)
    return content.replace(record["sha256"], digest_of(record))


BAD = {
    "empty": ("", "not valid JSON: .* line 1, column 1"),
    "cut short": (text()[:-5], "not valid JSON"),
    "binary": ("\x00\x01", "not valid JSON"),
    "number": ("3", "not a calibrator's file"),
    "list": ("[]", "not a calibrator's file"),
    "other format": (text(format="x"), "not a calibrator's file"),
    "deep": ("[" * 200_000, "nested too deeply|not valid JSON"),
    "deep object": ('{"a":' * 100_000, "nested too deeply|not valid JSON"),
    "twice": (text().replace('"schema": 2', '"schema": 2, "schema": 2'), "'schema' comes twice"),
    "new schema": (text(schema=3), "schema 3, this calibrant reads 1 and 2"),
    "schema true": (text(schema=True), "schema must be a whole number, got True"),
    "schema text": (text(schema="1"), "schema must be a whole number, got '1'"),
    "unknown key": (text(evil=1), "unknown key 'evil' in the file; expected one of format"),
    "close key": (text(clases=1), "unknown key 'clases' in the file; did you mean classes"),
    "no fit": (
        json.dumps(signed({k: v for k, v in GOOD.items() if k != "fit"})),
        "the file has no 'fit'",
    ),
    "close method": (text(method="temprature"), "'temprature'; did you mean temperature"),
    "unknown method": (text(method="os.system"), "no method 'os.system'; expected one of"),
    "method list": (text(method=["temperature"]), "method must be a string, got a list"),
    "no classes": (text(classes=0), r"classes must lie in \[2, 1,000,000\], got 0"),
    "many classes": (text(classes=10**12), "classes must lie in"),
    "classes float": (text(classes=3.0), "classes must be a whole number, got 3.0"),
    "NaN": (text(parameters={"temperature": math.nan}), "NaN is not a number that"),
    "infinity": (text(parameters={"temperature": math.inf}), "Infinity is not a number that"),
    "overflow": (number("1e999"), "must be finite, got inf"),
    "long number": (text().replace(repr(ODD), "9" * 5000), "bad.json"),
    "large whole": (number("9" * 400), "more digits than a float"),
    "negative": (text(parameters={"temperature": -1.0}), "parameters do not fit: temperature must"),
    "text": (text(parameters={"temperature": "1"}), "temperature must be a number, got '1'"),
    "null": (text(parameters={"temperature": None}), "must be a number, got null"),
    "parameters list": (text(parameters=[1]), "parameters must be an object, got a list"),
    "parameter missing": (text(parameters={}), "parameters has no 'temperature'"),
    "parameter extra": (
        text(parameters={"temperature": 1.0, "__class__": 1.0}),
        "unknown key '__class__' in parameters",
    ),
    "fit text": (text(fit="x"), "fit must be an object"),
    "fit extra": (text(fit=GOOD["fit"] | {"x": 1}), "unknown key 'x' in fit"),
    "fit sha": (text(fit=GOOD["fit"] | {"sha256": "../x"}), "64 hexadecimal digits"),
    "fit count": (text(fit=GOOD["fit"] | {"examples": 1.5}), "fit.examples must be a whole"),
    "fit flag": (text(fit=GOOD["fit"] | {"converged": 1}), "fit.converged must be true or false"),
    "terminal codes": (text(method="\x1b[31m" * 50), "no method"),
    "too long": (text() + " " * storage.MAX_BYTES, "more than 4.0 MB"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, content, words):
    refused(tmp_path, content, words)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "bad.json").write_bytes(text().encode("utf-16"))
    with pytest.raises(ValueError, match="not text in UTF-8"):
        load(tmp_path / "bad.json")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "none.json")
    with pytest.raises(OSError, match="not a file"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="not a file"):
        load(tmp_path / "pipe.json")


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Calibrator):
    """Stands for any calibrator with tensors."""

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
        return cls(
            classes=k,
            scale=torch.eye(k, dtype=torch.float64),
            counts=torch.bincount(predictions.labels, minlength=k),
            slope=1.0,
            mode="identity",
        )

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


def test_large_tensors_go_to_a_file_of_their_own(tmp_path, table):
    save(table, tmp_path / "cal.json")
    (beside,) = tmp_path.glob("*.safetensors")
    assert (tmp_path / "cal.json").stat().st_size < 2000
    record = json.loads((tmp_path / "cal.json").read_text())
    digest = hashlib.sha256(beside.read_bytes()).hexdigest()
    assert record["tensors"] == {"file": beside.name, "sha256": digest}
    assert beside.name == f"cal.{digest[:16]}.safetensors"
    found = load(tmp_path / "cal.json")
    assert found.origin.remark == "no [ end"
    # JSON has no infinity: that the gradient was not finite is all that is kept.
    assert math.isnan(found.origin.gradient_norm)
    same(replace(found, origin=None), replace(table, origin=None))


def test_whole_numbers_and_text_come_back_inline(tmp_path, table):
    small = replace(table, classes=2, scale=torch.eye(2, dtype=torch.float64), origin=None)
    save(small, tmp_path / "cal.json")
    same(load(tmp_path / "cal.json"), small)
    assert '"values": [1.0, 0.0, 0.0, 1.0]' in (tmp_path / "cal.json").read_text()


def test_a_file_of_predictions_of_that_name_is_not_overwritten(tmp_path, table):
    Predictions([[1.0, 0.0]], [0]).save(tmp_path / "cal.safetensors")
    save(table, tmp_path / "cal.json")
    assert files.names(tmp_path / "cal.safetensors") == ["labels", "logits"]


def test_the_tensors_are_there_before_the_file_that_names_them(tmp_path, table, monkeypatch):
    save(table, tmp_path / "cal.json")
    other = replace(table, slope=3.0, scale=table.scale + 1)
    replaced = []
    replace_file = os.replace

    def killed(source, target):
        if str(target).endswith(".json"):
            raise KeyboardInterrupt
        replaced.append(target)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save(other, tmp_path / "cal.json")
    monkeypatch.undo()
    monkeypatch.setitem(CALIBRATORS, "table", Table)
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
    digest = hashlib.sha256(content).hexdigest()
    half = bytes(content[: len(content) // 2])
    beside.write_bytes(half)
    tensors = {"file": beside.name, "sha256": hashlib.sha256(half).hexdigest()}
    refused(tmp_path, record | {"tensors": tensors}, "not a valid safetensors file")
    beside.write_bytes(content)
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


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "..",
        "",
        "x.pt",
        "a\x00.safetensors",
        3,
    ],
)
def test_tensors_are_never_looked_for_elsewhere(tmp_path, table, name):
    save(table, tmp_path / "bad.json")
    record = json.loads((tmp_path / "bad.json").read_text())
    record["tensors"]["file"] = name
    refused(tmp_path, record, "tensors.file must be")


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_that_do_not_fit_are_refused(tmp_path, table):
    small = replace(table, classes=2, scale=torch.eye(2, dtype=torch.float64), origin=None)
    save(small, tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text())
    good = record["parameters"]["scale"]
    for wrong, words in [
        (good | {"shape": [4]}, "scale must be"),
        (good | {"shape": [2, 3]}, "has 4 values"),
        (good | {"shape": [-2, -2]}, "up to 4 sizes"),
        (good | {"shape": [2, True]}, "up to 4 sizes"),
        (good | {"shape": [10**9] * 4, "values": []}, "has 0 values"),
        (good | {"values": [1.0, 0.0, 0.0, "x"]}, "values must be a number, got 'x'"),
        (good | {"values": [1.0, 0.0, 0.0, [1.0]]}, "values must be a number, got a list"),
        (good | {"dtype": "int64"}, "values must be a whole number, got 1.0"),
        (good | {"dtype": "int64", "values": [10**30, 1, 1, 1]}, "out of range"),
    ]:
        changed = record | {"parameters": record["parameters"] | {"scale": wrong}}
        refused(tmp_path, changed, words)
    infinite = good | {"values": [1.0, 0.0, 0.0, math.inf]}
    changed = record | {"parameters": record["parameters"] | {"scale": infinite}}
    # As 1e999, which is JSON, unlike Infinity.
    content = json.dumps(signed(changed)).replace("Infinity", "1e999")
    refused(tmp_path, content, "finite numbers only")


def test_what_could_not_be_read_back_is_not_written(tmp_path, table, monkeypatch):
    with pytest.raises(ValueError, match=r"saved as .json"):
        save(table, tmp_path / "cal.pt")
    with pytest.raises(ValueError, match="scale holds numbers that are not finite"):
        save(replace(table, scale=table.scale * math.nan), tmp_path / "cal.json")
    monkeypatch.delitem(CALIBRATORS, "table")
    with pytest.raises(ValueError, match="Table is not in CALIBRATORS"):
        save(table, tmp_path / "cal.json")
    assert os.listdir(tmp_path) == []


def test_without_safetensors_only_large_ones_need_it(tmp_path, table, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    save(TemperatureScaling(classes=2, temperature=ODD), tmp_path / "cal.json")
    with pytest.raises(ImportError, match=r"pip install 'calibrant\[audit\]'"):
        save(table, tmp_path / "large.json")
    assert os.listdir(tmp_path) == ["cal.json"]
