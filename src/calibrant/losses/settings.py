"""Checks of settings, shared by losses, methods and models; each raises with a one-line message."""

import math
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.setting_errors import SettingError

# Which form of a loss, where a paper and the public code differ.
Source = Literal["paper", "public_code"]
SOURCES = ("paper", "public_code")


def number(name: str, value: Any, *, many: bool = False) -> None:
    """Require a number, or with `many` a tensor; booleans and strings raise."""
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not isinstance(value, Tensor):
        return
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(f"{name} must be a number, got a tensor of {value.dtype}")
    if value.ndim and not many:
        raise SettingError(name, f"must be one number, got shape {tuple(value.shape)}")


def integer(name: str, low: int, value: Any) -> None:
    """Require an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    at_least(name, low, int(value))


def boolean(name: str, value: Any) -> None:
    """Require True or False: the string "no" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {value!r}")


def at_least(
    name: str, low: float, value: float | Tensor, *, infinite: bool = False, many: bool = False
) -> None:
    """Require a number, or `many`, of at least `low`: not NaN and, unless allowed, finite."""
    number(name, value, many=many)
    _all(name, value, lambda each: each >= low, f"be at least {low:g}")
    if not infinite:
        _all(name, value, lambda each: abs(each) < math.inf, "be finite")


def positive(
    name: str, value: float | Tensor, *, infinite: bool = False, many: bool = False
) -> None:
    """Require a number, or `many`, above zero."""
    number(name, value, many=many)
    _all(name, value, lambda each: each > 0, "be positive")
    at_least(name, 0, value, infinite=infinite, many=many)


def _all(name: str, value: float | Tensor, holds: Callable[[Any], Any], must: str) -> None:
    """Require that a condition holds for a number, or for every element of a tensor."""
    if isinstance(value, Tensor):
        # Not on a GPU: reading values would synchronise with it in every step.
        bad = [] if value.is_cuda else value[~holds(value)].flatten()[:1].tolist()
    else:
        # Not converted to a tensor: that takes as long as a loss on a small batch.
        bad = [] if holds(value) else [value]
    if bad:
        raise SettingError(name, f"must {must}, got {float(bad[0]):g}")


def fraction(name: str, value: float) -> None:
    """Require a number in [0, 1]."""
    number(name, value)
    if not 0 <= value <= 1:
        raise SettingError(name, f"must lie in [0, 1], got {value:g}")


def one_of(name: str, value: Any, names: Collection[str]) -> None:
    """Require one of the given names."""
    if not isinstance(value, str) or value not in names:
        raise SettingError(name, f"must be one of {list(names)}, got {value!r}")


def broadcastable(
    name: str, value: float | Tensor, like: Tensor, per: Literal["examples", "classes"]
) -> float | Tensor:
    """Require a scalar, or one value per example or class of logits (n, k), which it is cast to."""
    if not isinstance(value, Tensor):
        return value
    size = like.shape[per == "classes"]
    # A column would silently broadcast against the batch to (n, n).
    if tuple(value.shape) not in ((), (size,)):
        shape = tuple(value.shape)
        raise SettingError(
            name, f"must be a number or one for each of {size} {per}, got shape {shape}"
        )
    return value.to(like)
