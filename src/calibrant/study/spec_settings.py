"""Which settings each dataset, model, method, optimizer and recipe takes, of which type."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, reduce
from operator import or_
from typing import Any, Literal, Union, get_args, get_origin

from calibrant.curvature import Probe
from calibrant.data import DATASETS, Augmentation
from calibrant.data.cifar import HUMAN_LABELS
from calibrant.data.options import Options
from calibrant.losses import LOSSES
from calibrant.methods import ADJUST, METHODS
from calibrant.methods.plain import TERMS
from calibrant.models import MODELS
from calibrant.models.building import settings_of
from calibrant.training.optimizers import OPTIMIZERS
from calibrant.training.probing import DEFAULTS as PROBE_DEFAULTS
from calibrant.training.probing import SPLITS
from calibrant.training.recipe import CHOICES, Recipe

Part = Literal["dataset", "model", "optimizer", "method"]
PARTS: tuple[Part, ...] = ("dataset", "model", "optimizer", "method")
NAMES: dict[Part, Mapping[str, Any]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "method": METHODS,
}
LONGEST_LABEL = 80
# Settings of an optimizer in addition to its name, each a setting of the recipe.
OF_OPTIMIZER = ("lr", "momentum", "nesterov", "weight_decay", "sam", "epochs", "batch")
# Datasets that are the user's own files, in a folder of their own.
OWN_FILES = ("image_folder", "mask_folder")
# What a setting may be whose type is known to its own code alone.
FREE: Any = bool | int | float | str | list[bool | int | float | str]
# A setting: the type it has in a file, and its default.
Fields = dict[str, tuple[Any, Any]]


def is_code(name: str) -> bool:
    """Whether a model's name is the path of a factory, `package.module:factory`."""
    return ":" in name


def family_name(part: Part, name: str) -> str:
    """The key in the dict of the family: only of `hf:NAME` it is not the name itself."""
    return "hf" if part == "dataset" and name.startswith("hf:") else name


@cache
def _fields_of(part: Part, key: str) -> Fields:
    if part == "optimizer":
        return {name: recipe_fields()[name] for name in OF_OPTIMIZER}
    if part == "model":
        # The types by which `models.build` checks them.
        settings = settings_of(key).items()
        return {k: (list[int] if isinstance(v, tuple) else type(v), v) for k, v in settings}
    if part == "dataset":
        shared = {each.name: (file_type(each.type), each.default) for each in fields(Options)}
        # A word for the noise is the name of real labels, which only some readers have.
        shared["label_noise"] = (float, 0.0)
        known = {**shared, **_parameters(DATASETS[key].load)}
        if key == "cifar10":
            known["label_noise"] = (float | Literal[tuple(HUMAN_LABELS)], 0.0)
        found = {name: known[name] for name in DATASETS[key].options}
        return found | ({"root": (str, None)} if key in OWN_FILES else {})
    known = {**_parameters(METHODS[key].make), ADJUST: (float, 0.0)}
    if key in LOSSES:
        known = {**_parameters(LOSSES[key]), **known}
    found = {name: known.get(name, (FREE, None)) for name in METHODS[key].settings}
    if key in TERMS:
        found["weight"] = (float, TERMS[key])
    return found


def fields_of(part: Part, name: str) -> Fields:
    """The settings of one member of a family; none if they are known to its own code alone."""
    return {} if is_code(name) and part == "model" else _fields_of(part, family_name(part, name))


@cache
def recipe_fields() -> Fields:
    """The settings that `recipe_from` takes, but for the name of the optimizer."""
    found: Fields = {}
    for each in (*fields(Recipe), *fields(Augmentation)):
        if each.name not in ("optimizer", "augmentation"):
            names = tuple(CHOICES.get(each.name, ()))
            kind = Literal[names] if names else file_type(each.type)
            found[each.name] = (kind, each.default)
    return found


@cache
def probe_fields() -> Fields:
    """The settings of a probe that a file can give."""
    known = {**_parameters(Probe), "split": (Literal[SPLITS], PROBE_DEFAULTS["split"])}
    return {name: known[name] for name in PROBE_DEFAULTS}


def filled(part: Part, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a member, with the defaults of those that are not given."""
    known = fields_of(part, name)
    return {**{key: default for key, (_, default) in known.items()}, **settings}


def file_type(annotation: Any) -> Any:
    """The type that a setting has in a file: no tensors, lists for sequences; None if it has none.

    >>> from collections.abc import Sequence
    >>> file_type(int | Sequence[int] | None)
    int | list[int]
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        kept = [file_type(each) for each in inner]
        kept = [each for each in dict.fromkeys(kept) if each is not None]
        return reduce(or_, kept) if kept else None
    if origin in (tuple, list, Sequence):
        return list[file_type(inner[0])]  # type: ignore[misc]
    known = origin is Literal or annotation in (bool, int, float, str)
    return annotation if known else None


def _parameters(make: Callable[..., Any]) -> Fields:
    """Keyword-only arguments that a file can give."""
    return {
        each.name: (file_type(each.annotation) or FREE, each.default)
        for each in inspect.signature(make).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    }


def plain(value: Any) -> Any:
    """A value as JSON has it, one form for equal numbers: 3.0 is 3."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value
