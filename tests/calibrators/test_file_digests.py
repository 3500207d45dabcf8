"""Changed calibrator files are detected, and parameters that overflow are refused."""

import json
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import (
    CALIBRATORS,
    Blend,
    QuadraticScaling,
    TemperatureScaling,
    records,
    storage,
)
from calibrant.calibrators.records import digest_of
from calibrant.calibrators.storage import load, save

# One of each kind of file: a number, tensors of one and two axes, integers, parts.
KINDS = ("temperature", "matrix", "isotonic", "blend")


@cache
def fitted(name):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 2)) * 2
    data = Predictions(logits, (logits + generator.gumbel(size=logits.shape)).argmax(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "blend":
            parts = fitted("temperature"), replace(fitted("platt"), origin=None)
            return Blend(classes=2, parts=parts)
        return CALIBRATORS[name].fit(data)


def flat(calibrator):
    """A calibrator as plain values."""
    parts = calibrator.parts if isinstance(calibrator, Blend) else [calibrator]
    return [type(calibrator), calibrator.classes, calibrator.origin] + [
        (type(part), part.origin, key, value.tolist() if isinstance(value, torch.Tensor) else value)
        for part in parts
        for key, value in part.parameters.items()
    ]


def same(one, two):
    """Whether both hold the same values: other whitespace, or other digits of the same number."""
    return json.loads(one) == json.loads(two)


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


@pytest.fixture
def unprobed(monkeypatch):
    """Only the digest may refuse, not invalid parameters."""
    monkeypatch.setattr(storage, "check_probabilities", lambda calibrator: None)


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("name", KINDS)
def test_every_changed_character_is_refused_or_changes_nothing(name, tmp_path):
    path = tmp_path / "cal.json"
    save(fitted(name), path)
    content, expected = path.read_bytes(), flat(fitted(name))
    for at, byte in enumerate(content):
        digit = b"0123456789"[(byte - 47) % 10] if chr(byte).isdigit() else byte ^ 2
        changes = [bytes([digit]), b" "]
        if name == "temperature":
            # Lost, doubled, and the end of the file.
            changes += [b"", bytes([byte] * 2), None]
        for other in changes:
            changed = content[:at] + (b"" if other is None else other + content[at + 1 :])
            unchanged = changed == content
            assert unchanged or not accepted(path, changed, expected) or same(changed, content)


def record_of(tmp_path, calibrator):
    save(calibrator, tmp_path / "cal.json")
    return json.loads((tmp_path / "cal.json").read_text())


def test_layout_and_order_of_keys_do_not_matter(tmp_path):
    given = TemperatureScaling(classes=3, temperature=1.5)
    record = record_of(tmp_path, given)
    (tmp_path / "cal.json").write_text(json.dumps(dict(reversed(record.items()))))
    assert flat(load(tmp_path / "cal.json")) == flat(given)


def test_a_file_of_schema_1_is_read_with_a_warning(tmp_path):
    given = TemperatureScaling(classes=3, temperature=1.5)
    record = record_of(tmp_path, given) | {"schema": 1}
    digest = record.pop("sha256")
    (tmp_path / "cal.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="cal.json: schema 1 has no digest.*load and save"):
        assert flat(load(tmp_path / "cal.json")) == flat(given)
    (tmp_path / "cal.json").write_text(json.dumps(record | {"sha256": digest}))
    with pytest.raises(ValueError, match="unknown key 'sha256'"):
        load(tmp_path / "cal.json")


def test_a_file_of_schema_2_with_another_or_no_digest_is_refused(tmp_path):
    record = record_of(tmp_path, TemperatureScaling(classes=3, temperature=1.5))
    words = r"sha256 differs: the file was changed .* restore it, or"
    changed = record | {"parameters": {"temperature": 9.5}}
    for wrong in (changed, *(record | {"sha256": each} for each in (None, 3, "", ["x"]))):
        (tmp_path / "cal.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=words):
            load(tmp_path / "cal.json")
    del record["sha256"]
    (tmp_path / "cal.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="the file has no 'sha256'"):
        load(tmp_path / "cal.json")


def extreme(name, key, number):
    """A record of a fitted calibrator with the first value of a parameter replaced."""
    record = {"method": name, "parameters": {}, "fit": None}
    for each, value in fitted(name).parameters.items():
        changed = value
        if each == key:
            changed = number
            if isinstance(value, torch.Tensor):
                changed = value.clone()
                changed.view(-1)[0] = number
        record["parameters"][each] = records.encoded(changed, inline=True)
    return record


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
@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.filterwarnings("ignore:.*has no digest")
def test_parameters_that_overflow_are_refused(tmp_path, name, key, number, schema):
    head = {"format": storage.FORMAT, "schema": schema, "calibrant": "0.1.0", "classes": 2}
    record = head | extreme(name, key, number)
    if schema == storage.SCHEMA:
        record["sha256"] = digest_of(record)
    (tmp_path / "cal.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"no probabilities for float(32|64) logits of"):
        load(tmp_path / "cal.json")


def test_parameters_that_overflow_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"cannot save temperature: .* size 1e\+30; rescale the"):
        save(TemperatureScaling(classes=2, temperature=1e-12), tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())


def test_every_fitted_calibrator_gives_probabilities_for_any_finite_logits():
    for name in CALIBRATORS:
        storage.check_probabilities(fitted(name))
    straight = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    storage.check_probabilities(QuadraticScaling(classes=2, coefficients=straight))
