"""How a network is trained: everything that is not data, model or method."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from calibrant.data import Augmentation
from calibrant.files.checks import one_line
from calibrant.losses.settings import at_least, fraction, one_of
from calibrant.metrics import METRICS
from calibrant.setting_errors import SettingError, did_you_mean
from calibrant.training.optimizers import OPTIMIZERS
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
        average: decay of an average of the weights that is used in their place; none if 0.
        stop_on: metric of the validation data by which the best epoch is kept; none if empty.
        patience: epochs without a better value of `stop_on` after which training ends.
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
    average: float = 0.0
    stop_on: str = ""
    patience: int = 10
    precision: str = "float32"
    augmentation: Augmentation = field(default_factory=Augmentation)
    meta: float = 0.1

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            _check_type(name, getattr(self, name), kind)
        for name, known in CHOICES.items():
            one_of(name, getattr(self, name), known)
        one_of("stop_on", self.stop_on, ("", *METRICS))
        for name in ("epochs", "batch", "patience"):
            at_least(name, 1, getattr(self, name))
        for name in ("lr", "weight_decay", "warmup", "decay", "clip", "sam"):
            at_least(name, 0, getattr(self, name))
        for name in ("momentum", "average", "meta"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(name, f"must lie in [0, 1), got {getattr(self, name)}")
        for each in self.milestones:
            fraction("milestones", each)
        if self.lr == 0:
            object.__setattr__(self, "lr", RATES[self.optimizer])
        if self.warmup > self.epochs:
            problem = f"must be at most the {self.epochs} epochs, got {self.warmup}"
            raise SettingError("warmup", problem)

    def flat(self) -> dict[str, Any]:
        """Every setting as a plain value, by its name."""
        plain = asdict(self)
        inner = plain.pop("augmentation")
        plain["milestones"] = list(self.milestones)
        return {**plain, **{f"augmentation.{name}": value for name, value in inner.items()}}


# What each setting is, by its default; those of the augmentation stand next to the others.
KINDS = {each.name: type(each.default) for each in fields(Recipe) if each.name != "augmentation"}
INNER = {each.name: type(each.default) for each in fields(Augmentation)}
CHOICES: dict[str, Collection[str]] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
}


def recipe_from(given: Mapping[str, Any]) -> Recipe:
    """Make a recipe of plain values; those of the augmentation stand next to the others."""
    known = {**KINDS, **INNER}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"no setting {name!r} of a recipe; {did_you_mean(name, known)}")
        _check_type(name, value, known[name])
    plain = {name: value for name, value in given.items() if name in KINDS}
    if "milestones" in plain:
        plain["milestones"] = tuple(plain["milestones"])
    changed = {name: value for name, value in given.items() if name in INNER}
    return Recipe(**plain, augmentation=Augmentation(**changed))


WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _check_type(name: str, value: Any, kind: type) -> None:
    """Refuse a value of another type, and an integer that no run can have."""
    allowed = {float: (int, float), tuple: (list, tuple)}.get(kind, (kind,))
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        must = WORDS.get(kind, "a list of numbers")
        raise SettingError(name, f"must be {must}, got {one_line(repr(value), 80)}")
    most = MOST if kind is int else sys.float_info.max
    if isinstance(value, int) and abs(value) > most:
        # Python prints no integers of thousands of digits.
        came = value if value.bit_length() < 100 else f"an integer of {value.bit_length()} bits"
        raise SettingError(name, f"must be at most {most:.10g}, got {came}")
