"""Methods: how a batch becomes a loss, and what is learnt beside the weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrant.losses import LOSSES
from calibrant.methods.base import Alone, Method, Ranks
from calibrant.methods.cals_alm import CalsAlm
from calibrant.methods.plain import TERMS, Plain, WithTerm
from calibrant.methods.settings import meant, settings_of


@dataclass(frozen=True)
class Kind:
    """A method by name: how it is made from the number of classes and settings, and its meaning."""

    make: Callable[..., Method]
    settings: tuple[str, ...]
    meaning: str


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _of_loss(name: str) -> Kind:
    settings = settings_of(LOSSES[name])
    if name in TERMS:
        meaning = f"a loss plus: {_first_line(LOSSES[name])}"
        return Kind(partial(WithTerm, name), (*settings, "base", "weight"), meaning)
    return Kind(partial(Plain, name), tuple(settings), _first_line(LOSSES[name]))


METHODS: dict[str, Kind] = {
    **{name: _of_loss(name) for name in LOSSES},
    "cals_alm": Kind(CalsAlm, tuple(settings_of(CalsAlm)), _first_line(CalsAlm)),
}


def build(name: str, *, classes: int, **settings: Any) -> Method:
    """Make a method by its name in `METHODS`.

    Examples:
        >>> build("focal", classes=10, gamma=2.0).needs_meta
        False
    """
    if name not in METHODS:
        raise ValueError(f"no method {name!r}; {meant(name, METHODS)}")
    for each in settings:
        if each not in METHODS[name].settings:
            raise ValueError(
                f"method {name} has no setting {each!r}; {meant(each, METHODS[name].settings)}"
            )
    method = METHODS[name].make(classes=classes, **settings)
    method.description = f"{name} {settings}" if settings else name
    return method


__all__ = ["METHODS", "Alone", "CalsAlm", "Kind", "Method", "Plain", "Ranks", "WithTerm", "build"]
