"""Checks of the settings of losses: one line that says what must hold and what came."""

import math
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.setting_errors import SettingError

# Where a paper and the code published with it, or after it, differ.
Source = Literal["paper", "public_code"]
SOURCES = ("paper", "public_code")


def number(name: str, value: Any, *, many: bool = False) -> None:
    """Refuse what is no number, or a tensor of `many`: words, truth values, nothing."""
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not isinstance(value, Tensor):
        return
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(f"{name} must be a number, got a tensor of {value.dtype}")
    if value.ndim and not many:
        raise SettingError(name, f"must be one number, got shape {tuple(value.shape)}")


def whole(name: str, low: int, value: Any) -> None:
    """Refuse what is not a whole number, or one below `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    at_least(name, low, int(value))


def flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false: the word "no" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {value!r}")


def at_least(
    name: str, low: float, value: float | Tensor, *, infinite: bool = False, many: bool = False
) -> None:
    """Refuse a number, or one of `many`, below `low`, NaN or (unless allowed) infinite."""
    number(name, value, many=many)
    _all(name, value, lambda each: each >= low, f"be at least {low:g}")
    if not infinite:
        _all(name, value, lambda each: abs(each) < math.inf, "be finite")


def positive(
    name: str, value: float | Tensor, *, infinite: bool = False, many: bool = False
) -> None:
    """Refuse a number, or one of `many`, that is not above zero."""
    number(name, value, many=many)
    _all(name, value, lambda each: each > 0, "be positive")
    at_least(name, 0, value, infinite=infinite, many=many)


def _all(name: str, value: float | Tensor, holds: Callable[[Any], Any], must: str) -> None:
    """Refuse a number, or a tensor of them, of which something does not hold."""
    if isinstance(value, Tensor):
        # On a GPU looking at the values would wait for it, in every step.
        bad = [] if value.is_cuda else value[~holds(value)].flatten()[:1].tolist()
    else:
        # A tensor of one number would cost as much as a loss of a small batch.
        bad = [] if holds(value) else [value]
    if bad:
        raise SettingError(name, f"must {must}, got {float(bad[0]):g}")


def fraction(name: str, value: float) -> None:
    """Refuse a number outside [0, 1]."""
    number(name, value)
    if not 0 <= value <= 1:
        raise SettingError(name, f"must lie in [0, 1], got {value:g}")


def one_of(name: str, value: Any, names: Collection[str]) -> None:
    """Refuse a name that does not exist, and list those that do."""
    if not isinstance(value, str) or value not in names:
        raise SettingError(name, f"must be one of {list(names)}, got {value!r}")


def one_for_each(name: str, value: float | Tensor, size: int, what: str) -> None:
    """Refuse a tensor that is neither one number nor one number for each example or class."""
    # A column would broadcast against the batch and give n^2 numbers without a word.
    if isinstance(value, Tensor) and tuple(value.shape) not in ((), (size,)):
        raise SettingError(
            name,
            f"must be a number or one for each of {size} {what}, got shape {tuple(value.shape)}",
        )
