"""How a network is trained: everything that is not data, model or method."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.data import Augmentation
from calibrant.files.checks import one_line
from calibrant.losses.settings import at_least, fraction, one_of
from calibrant.metrics import METRICS
from calibrant.setting_errors import SettingError, did_you_mean
from calibrant.training.optimizers import OPTIMIZERS
from calibrant.training.refinement import REFINED
from calibrant.training.schedules import SCHEDULES

RATES = {"sgd": 0.1, "gd": 0.1, "adamw": 3e-3, "muon": 3e-3}
PRECISIONS = ("float32", "bfloat16", "float64")
# Largest integer: no run has as many epochs, or examples in a step.
MOST = 10**9


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run, checked when made.

    Attributes:
        epochs: passes over the training data.
        batch: examples of a step, over all processes; what is left of an epoch is left out, and is
            another part in each epoch.
        optimizer: a name in `OPTIMIZERS`; "gd" takes all training data as one batch.
        lr: highest learning rate; 0 is the usual one of the optimizer, in `RATES`.
        momentum: momentum of sgd, and of muon.
        nesterov: look ahead, for sgd with momentum.
        weight_decay: not on norms and biases.
        schedule: a name in `SCHEDULES`, of the learning rate over the steps.
        warmup: epochs in which the learning rate rises from zero.
        milestones: fractions of the run after which "multi_step" lowers the rate.
        decay: factor of "multi_step".
        clip: largest norm of the gradient; none if 0.
        sam: radius of sharpness-aware minimisation around the optimizer; none if 0.
        average: decay of an average of the weights that is used in their place; none if 0. Of
            several decays, 0 (the newest weights) may be one, the best by `stop_on` is used; 1 is
            the equal average of the last part of the run (SWA).
        average_from: fraction of the run after which an average of decay 1 begins.
        stop_on: metric of the validation data by which the best epoch is kept, or "refined_nll" or
            "refined_brier"; none if empty.
        refine_by: calibrator for these two, which are the NLL and the Brier score after it,
            cross-fitted.
        patience: epochs without a better value of `stop_on` after which training ends; 0 trains
            all epochs.
        precision: "float32", "bfloat16" (mixed, where the device has it) or "float64".
        augmentation: augmentation of the training images.
        meta: part of the training data set aside, for methods that ask for it.
    """

    epochs: int = 20
    batch: int = 128
    optimizer: str = "sgd"
    lr: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    warmup: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    clip: float = 0.0
    sam: float = 0.0
    average: float | tuple[float, ...] = 0.0
    average_from: float = 0.75
    stop_on: str = ""
    refine_by: str = "temperature"
    patience: int = 10
    precision: str = "float32"
    augmentation: Augmentation = field(default_factory=Augmentation)
    meta: float = 0.1

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            _check_type(name, getattr(self, name), kind)
        for name, known in CHOICES.items():
            one_of(name, getattr(self, name), known)
        one_of("stop_on", self.stop_on, ("", *METRICS, *REFINED))
        one_of("refine_by", self.refine_by, CALIBRATORS)
        for name in ("epochs", "batch"):
            at_least(name, 1, getattr(self, name))
        for name in ("lr", "weight_decay", "warmup", "decay", "clip", "sam", "patience"):
            at_least(name, 0, getattr(self, name))
        for name in ("momentum", "meta"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(name, f"must lie in [0, 1), got {getattr(self, name)}")
        fraction("average_from", self.average_from)
        for name in ("milestones", "average"):
            for each in _all(getattr(self, name)):
                fraction(name, each)
        if len(set(self.averages)) < len(self.averages):
            raise SettingError("average", f"must be different, got {list(self.averages)}")
        if len(self.averages) > 1 and not self.stop_on:
            raise SettingError("average", "of several needs stop_on, by which one is chosen")
        if self.lr == 0:
            object.__setattr__(self, "lr", RATES[self.optimizer])
        if self.warmup > self.epochs:
            problem = f"must be at most the {self.epochs} epochs, got {self.warmup}"
            raise SettingError("warmup", problem)

    @property
    def averages(self) -> tuple[float, ...]:
        """Decays of the averages that are measured after each epoch; 0 is the newest weights."""
        return _all(self.average) or (0.0,)

    def flat(self) -> dict[str, Any]:
        """Every setting as a plain value, by its name."""
        plain = asdict(self)
        inner = plain.pop("augmentation")
        for name in ("milestones", "average"):
            if isinstance(plain[name], tuple):
                plain[name] = list(plain[name])
        return {**plain, **{f"augmentation.{name}": value for name, value in inner.items()}}


# What each setting is, by its default; those of the augmentation stand next to the others.
KINDS: dict[str, type] = {
    each.name: type(each.default) for each in fields(Recipe) if each.name != "augmentation"
}
INNER = {each.name: type(each.default) for each in fields(Augmentation)}
CHOICES: dict[str, Collection[str]] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
}


@dataclass(frozen=True)
class NamedRecipe:
    """Settings with a name, such as `calibrant train --recipe refined`; all others can be added.

    Attributes:
        meaning: one line.
        settings: what it sets, as in a file.
    """

    meaning: str
    settings: Mapping[str, Any]


RECIPES = {
    "plain": NamedRecipe("the weights after the last epoch", {"average": 0.0, "stop_on": ""}),
    "refined": NamedRecipe(
        "averaged weights of the epoch with the lowest validation NLL after temperature scaling",
        {"average": [0.9, 0.98, 0.995], "stop_on": "refined_nll", "patience": 0},
    ),
}


def named_settings(given: Any) -> Any:
    """Replace the name of a recipe, alone or beside other settings, by what it sets."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or "name" not in table:
        return given
    others = {key: value for key, value in table.items() if key != "name"}
    name = str(table["name"])
    if name not in RECIPES:
        raise ValueError(f"no recipe {one_line(repr(name), 80)}; {did_you_mean(name, RECIPES)}")
    return {**RECIPES[name].settings, **others}


def recipe_from(given: Mapping[str, Any]) -> Recipe:
    """Make a recipe of plain values; those of the augmentation stand next to the others."""
    known = {**KINDS, **INNER}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"no setting {name!r} of a recipe; {did_you_mean(name, known)}")
        _check_type(name, value, known[name])
    plain = {name: value for name, value in given.items() if name in KINDS}
    for name in ("milestones", "average"):
        if isinstance(plain.get(name), list):
            plain[name] = tuple(plain[name])
    changed = {name: value for name, value in given.items() if name in INNER}
    return Recipe(**plain, augmentation=Augmentation(**changed))


WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _all(values: float | tuple[float, ...]) -> tuple[float, ...]:
    return values if isinstance(values, tuple) else (values,)


def _check_type(name: str, value: Any, kind: type) -> None:
    """Refuse a value of another type, and an integer that no run can have."""
    if name == "average" and isinstance(value, tuple | list):
        kind = tuple
    allowed = {float: (int, float), tuple: (list, tuple)}.get(kind, (kind,))
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        must = WORDS.get(kind, "a list of numbers")
        raise SettingError(name, f"must be {must}, got {one_line(repr(value), 80)}")
    most = MOST if kind is int else sys.float_info.max
    if isinstance(value, int) and abs(value) > most:
        # Python prints no integers of thousands of digits.
        came = value if value.bit_length() < 100 else f"an integer of {value.bit_length()} bits"
        raise SettingError(name, f"must be at most {most:.10g}, got {came}")
