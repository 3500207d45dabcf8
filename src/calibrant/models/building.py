"""Build networks: included ones by name (`build`), a user's by import path (`from_path`)."""

import importlib
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from calibrant.models.network import Network
from calibrant.models.registry import MODELS, Kind, Model
from calibrant.setting_errors import did_you_mean

# Accepted types of a setting, by the type of its default.
ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    tuple: (tuple, list),
}
TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", tuple: "a list of integers"}
SHAPES = {
    "images": "images (channels, height, width)",
    "masks": "images (channels, height, width)",
    "text": "token ids (length,) with a vocabulary",
    "numbers": "vectors (d,) or images (channels, height, width)",
}


def build(
    name: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Network:
    """Make a network of `MODELS`; the same seed gives the same weights, bit for bit.

    The global random state does not change.

    Args:
        classes: k, the number of logits.
        shape: shape of one input, without the batch.
        vocabulary: for text, the number of token ids.
        seed: seed of the weights.
        settings: settings of this network, such as `width`; `settings_of(name)` lists them.

    Examples:
        >>> network = build("resnet20", classes=10, shape=(3, 32, 32))
        >>> sum(weights.numel() for weights in network.parameters())
        269722
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; {did_you_mean(name, MODELS)}")
    model = MODELS[name]
    _check_task(classes, shape, vocabulary)
    if model.kind not in _kinds(shape, vocabulary):
        raise ValueError(_misfit(name, model, shape, vocabulary))
    known = settings_of(name)
    for key, value in settings.items():
        _check_setting(name, key, value, known)
    size = {"text": vocabulary, "numbers": math.prod(shape)}.get(model.kind, shape[0])
    with seeded(seed):
        return model.make(classes, size, **settings)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a network and their defaults."""
    make = MODELS[name].make
    fixed = getattr(make, "keywords", {})
    return {
        key: parameter.default
        for key, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key not in fixed
    }


def from_path(
    path: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> nn.Module:
    """Make a network with a user's own function or class.

    It is called as `factory(classes=..., shape=..., **settings)`, and with `vocabulary=...` for
    text. Any module is accepted; attributes `features` and `head` are used if they exist. The
    other arguments are those of `build`; torch's global generator is seeded.

    Args:
        path: path of the factory, `package.module:factory`. Importing runs the module's code.
        settings: passed to the factory.
    """
    _check_task(classes, shape, vocabulary)
    factory = _imported(path)
    given = {"classes": classes, "shape": shape, **settings}
    if vocabulary is not None:
        given["vocabulary"] = vocabulary
    try:
        inspect.signature(factory).bind(**given)
    except TypeError as error:
        called = ", ".join(given)
        raise TypeError(f"{path} must accept the arguments {called}: {error}") from None
    except ValueError:  # Compiled callables have no signature.
        pass
    with seeded(seed):
        module = factory(**given)
    if not isinstance(module, nn.Module):
        raise TypeError(f"{path} must return a torch.nn.Module, got {type(module).__name__}")
    return module


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside, and restore them afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _imported(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not (colon and module and name):
        raise ValueError(f"a model's path must be 'package.module:factory', got {path!r}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"cannot import {module!r} of {path!r}: {reason}; is its folder on PYTHONPATH?"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [key for key in vars(found) if not key.startswith("_")])
            raise ValueError(f"{module!r} has no {name!r}; {near}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} must be a function or class, got {type(found).__name__}")
    return found


def _check_task(classes: int, shape: tuple[int, ...], vocabulary: int | None) -> None:
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape must hold positive sizes of one input, got {shape}")
    if vocabulary is not None and vocabulary < 2:
        raise ValueError(f"vocabulary must be at least 2 (0 pads, 1 is unknown), got {vocabulary}")


def _kinds(shape: tuple[int, ...], vocabulary: int | None) -> tuple[Kind, ...]:
    if vocabulary is not None:
        return ("text",) if len(shape) == 1 else ()
    return ("images", "masks", "numbers") if len(shape) == 3 else ("numbers",)


def _misfit(name: str, model: Model, shape: tuple[int, ...], vocabulary: int | None) -> str:
    kinds = _kinds(shape, vocabulary)
    fitting = ", ".join(key for key, other in MODELS.items() if other.kind in kinds)
    came = f"shape {shape}" + (f" and a vocabulary of {vocabulary}" if vocabulary else "")
    advice = f"models that fit: {fitting}" if fitting else "text has shape (length,)"
    return f"{name} takes {SHAPES[model.kind]}, got {came}; {advice}"


def _check_setting(name: str, key: str, value: Any, known: Mapping[str, Any]) -> None:
    if key not in known:
        raise ValueError(f"{name} has no setting {key!r}; {did_you_mean(key, known)}")
    kind = type(known[key])
    valid = isinstance(value, ACCEPTED[kind]) and not isinstance(value, bool)
    if not valid or (kind is tuple and not all(type(each) is int for each in value)):
        raise TypeError(f"{key} of {name} must be {TYPE_NAMES[kind]}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} of {name} must be finite, got {value}")
