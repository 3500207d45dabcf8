"""Networks by name and by path, and their error messages."""

import sys

import pytest
import torch
from torch import nn

from calibrant.models import MODELS, build, from_path, settings_of

IMAGES = {"classes": 10, "shape": (3, 8, 8)}
FACTORIES = """
import torch
from torch import nn

def linear(*, classes, shape, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes, bias=bias))

def text(*, classes, shape, vocabulary):
    return nn.EmbeddingBag(vocabulary, classes)

def number(*, classes, shape):
    return 3

class Holder:
    linear = staticmethod(linear)

constant = 5
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "their_networks.py").write_text(FACTORIES)
    (tmp_path / "their_broken.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_networks", None)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("resnet19", IMAGES, r"no model 'resnet19'; did you mean resnet1\d\?"),
        ("transformer_xxl", IMAGES, "no model 'transformer_xxl'; expected one of small_cnn, "),
        ("resnet8", {**IMAGES, "widht": 2}, "resnet8 has no setting 'widht'; did you mean width"),
        ("resnet8", {**IMAGES, "depth": 20}, "resnet8 has no setting 'depth'; "),
        ("resnet8", {"classes": 2, "shape": (7,)}, r"images \(channels, .*\(7,\); models .*: mlp$"),
        ("unet", {"classes": 2, "shape": (7,)}, "models that fit: mlp$"),
        ("mlp", {"classes": 2, "shape": (7,), "vocabulary": 9}, "fit: text_cnn, bag_of_embeddings"),
        ("text_cnn", IMAGES, "token ids .* with a vocabulary, got shape .*; models .*: small_cnn"),
        ("text_cnn", {**IMAGES, "vocabulary": 9}, r"text has shape \(length,\)"),
        ("mlp", {"classes": 0, "shape": (7,)}, "classes must be at least 1, got 0"),
        ("mlp", {"classes": 2, "shape": ()}, r"positive sizes of one input, got \(\)"),
        ("mlp", {"classes": 2, "shape": (3, 0, 2)}, r"got \(3, 0, 2\)"),
        ("text_cnn", {"classes": 2, "shape": (7,), "vocabulary": 1}, "vocabulary must be at least"),
        ("resnet8", {**IMAGES, "width": 0}, "width must be positive, got 0"),
        ("resnet8", {**IMAGES, "width": float("nan")}, "width of resnet8 must be finite, got nan"),
        ("wide_resnet", {**IMAGES, "depth": 27}, r"depth must be 6 n \+ 4 .*, got 27"),
        ("wide_resnet", {**IMAGES, "dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1"),
        ("mlp", {**IMAGES, "activation": "gelu"}, r"one of \['tanh', 'relu'\], got 'gelu'"),
        ("mlp", {**IMAGES, "hidden": (3, 0)}, "hidden must be positive, got 0"),
        ("unet", {**IMAGES, "levels": 0}, "levels must be positive, got 0"),
        ("densenet40", {**IMAGES, "growth": -1}, "growth must be positive, got -1"),
        (
            "bag_of_embeddings",
            {"classes": 2, "shape": (7,), "vocabulary": 9, "hidden": -1},
            "hidden must be at least 0, got -1",
        ),
        (
            "text_cnn",
            {"classes": 2, "shape": (7,), "vocabulary": 9, "kernels": [4]},
            r"kernels and pool must be odd and positive, got \[4\] and 5",
        ),
    ],
)
def test_invalid_names_shapes_and_settings_raise_in_one_line(name, given, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(name, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting", "value", "words"),
    [
        ("resnet8", "width", "wide", "a number"),
        ("resnet8", "width", True, "a number"),
        ("resnet8", "width", None, "a number"),
        ("wide_resnet", "depth", 28.0, "an integer"),
        ("mlp", "hidden", 200, "a list of integers"),
        ("mlp", "hidden", [200, "200"], "a list of integers"),
        ("mlp", "activation", 3, "a string"),
    ],
)
def test_a_setting_of_another_type_raises(name, setting, value, words):
    with pytest.raises(TypeError) as caught:
        build(name, **IMAGES, **{setting: value})
    assert str(caught.value) == f"{setting} of {name} must be {words}, got {value!r}"


def test_settings_of_a_network_can_be_listed():
    assert settings_of("resnet8") == {"width": 1.0}
    assert settings_of("wide_resnet") == {"depth": 28, "width": 10.0, "dropout": 0.0}
    assert settings_of("mlp") == {"hidden": (200, 200), "activation": "tanh"}


@pytest.mark.parametrize("name", MODELS)
def test_every_default_can_be_passed_as_a_setting(name):
    text = MODELS[name].kind == "text"
    task = {"classes": 2, "shape": (4,) if text else (3, 4, 4)}
    settings = settings_of(name)
    if "width" in settings:
        settings["width"] = 0.25
    build(name, **task, vocabulary=5 if text else None, **settings)


def test_a_users_factory_is_seeded_without_changing_the_random_state(factories):
    before = torch.get_rng_state()
    task = {"classes": 4, "shape": (3, 2, 2)}
    first, again, other = (
        from_path("their_networks:linear", **task, seed=seed, bias=False) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)
    assert first[1].bias is None
    assert isinstance(from_path("their_networks:Holder.linear", **task), nn.Sequential)
    text = from_path("their_networks:text", classes=3, shape=(5,), vocabulary=11)
    assert text.weight.shape == (11, 3)


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("their_networks", ValueError, "must be 'package.module:factory', got 'their_networks'"),
        ("their_networks:", ValueError, "must be 'package.module:factory'"),
        ("no_such_module:made", ValueError, "cannot import 'no_such_module' .*; is its folder on"),
        ("their_broken:made", ValueError, "cannot import .*no_such_package_anywhere"),
        ("their_networks:liner", ValueError, "has no 'liner'; did you mean linear"),
        ("their_networks:constant", TypeError, "must be a function or class, got int"),
        ("their_networks:number", TypeError, "must return a torch.nn.Module, got int"),
        ("their_networks:text", TypeError, "must accept the arguments classes, shape: missing"),
    ],
)
def test_an_invalid_path_raises_in_one_line(factories, path, kind, message):
    with pytest.raises(kind, match=message) as caught:
        from_path(path, classes=2, shape=(3,))
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_of_a_users_factory_raises_before_the_call(factories):
    with pytest.raises(TypeError, match="classes, shape, biass: got an unexpected keyword argume"):
        from_path("their_networks:linear", classes=2, shape=(3,), biass=False)
