"""Training methods: the loss of a batch, and method state (auxiliary parameters)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any

from calibrant.deprecated import renamed_in
from calibrant.losses import LOSSES
from calibrant.losses.settings import at_least
from calibrant.methods.adafocal import AdaFocal
from calibrant.methods.base import Method, Ranks, SingleProcess
from calibrant.methods.calmo import Calmo
from calibrant.methods.class_margins import CalsAlm, CalsHr, MarginSmoothing
from calibrant.methods.gamma_net import GammaNet
from calibrant.methods.meta_smoothing import MetaSmoothing
from calibrant.methods.module import MethodModule
from calibrant.methods.plain import TERMS, Nacl, Plain, WithTerm, balanced_softmax, logit_adjustment
from calibrant.setting_errors import did_you_mean

# Logit adjustment: a setting of every method except those that are logit adjustment themselves.
ADJUST = "adjust"


@dataclass(frozen=True)
class Kind:
    """A method in `METHODS`: its factory, the names of its settings, and one line for tables."""

    make: Callable[..., Method]
    settings: tuple[str, ...]
    meaning: str


def _settings_of(make: Callable[..., Any]) -> list[str]:
    """Names of the keyword-only arguments of a function or class."""
    found = signature(make).parameters.values()
    return [each.name for each in found if each.kind is Parameter.KEYWORD_ONLY]


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _of_loss(name: str) -> Kind:
    settings = _settings_of(LOSSES[name])
    if name in TERMS:
        meaning = f"A loss plus a batch statistic: {_first_line(LOSSES[name])}"
        return Kind(partial(WithTerm, name), (*settings, "base", "weight", ADJUST), meaning)
    return Kind(partial(Plain, name), (*settings, ADJUST), _first_line(LOSSES[name]))


def _of_class(make: Callable[..., Method]) -> Kind:
    also = () if make in (logit_adjustment, balanced_softmax) else (ADJUST,)
    return Kind(make, (*_settings_of(make), *also), _first_line(make))


METHODS: dict[str, Kind] = {
    **{name: _of_loss(name) for name in LOSSES},
    "margin_smoothing": _of_class(MarginSmoothing),
    "nacl": _of_class(Nacl),
    "adafocal": _of_class(AdaFocal),
    "calmo": _of_class(Calmo),
    "cals_alm": _of_class(CalsAlm),
    "cals_hr": _of_class(CalsHr),
    "gamma_net": _of_class(GammaNet),
    "meta_smoothing": _of_class(MetaSmoothing),
    "logit_adjustment": _of_class(logit_adjustment),
    "balanced_softmax": _of_class(balanced_softmax),
}


def build(name: str, *, classes: int, **settings: Any) -> Method:
    """Make a method by its name in `METHODS`.

    The settings are those of the method, and `adjust` for long-tailed data: the multiple of the log
    class frequency that is added to the logits in training only (1 is the usual logit adjustment).

    Examples:
        >>> build("focal", classes=10, gamma=2.0).needs_meta
        False
    """
    if name not in METHODS:
        raise ValueError(f"no method {name!r}; {did_you_mean(name, METHODS)}")
    for each in settings:
        if each not in METHODS[name].settings:
            hint = did_you_mean(each, METHODS[name].settings)
            raise ValueError(f"method {name} has no setting {each!r}; {hint}")
    own = {key: value for key, value in settings.items() if key != ADJUST}
    method = METHODS[name].make(classes=classes, **own)
    if ADJUST in settings:
        at_least(ADJUST, 0, settings[ADJUST])
        method.adjust = float(settings[ADJUST])
    method.description = f"{name} {settings}" if settings else name
    return method


__getattr__ = renamed_in(__name__)
__all__ = [
    "ADJUST",
    "METHODS",
    "AdaFocal",
    "Calmo",
    "CalsAlm",
    "CalsHr",
    "GammaNet",
    "Kind",
    "MarginSmoothing",
    "MetaSmoothing",
    "Method",
    "MethodModule",
    "Nacl",
    "Plain",
    "Ranks",
    "SingleProcess",
    "WithTerm",
    "build",
]
