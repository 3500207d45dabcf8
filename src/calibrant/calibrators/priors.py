"""Class priors as users give them: one number, a number for each class, or by class name."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from calibrant.checks import as_tensor
from calibrant.setting_errors import did_you_mean

Prior = Float64[Tensor, " k"]
# Largest distance of a sum from 1 that is rounding.
TOLERANCE = 1e-3


def as_prior(
    name: str, given: Any, *, classes: int, class_names: Sequence[str] | None = None
) -> Prior:
    """Check class priors: positive, with a sum of 1.

    Args:
        name: for messages.
        given: the prior of class 1 of two, k numbers, or a mapping from class names (or indices)
            to numbers, where one class may be left out.
        classes: k.
        class_names: k names, for a mapping.

    Examples:
        >>> as_prior("prior", 0.25, classes=2).tolist()
        [0.75, 0.25]
        >>> as_prior("prior", {"b": 0.25, "c": 0.25}, classes=3, class_names="abc").tolist()
        [0.5, 0.25, 0.25]
    """
    values = _by_class(name, given, class_names or [*map(str, range(classes))])
    prior = as_tensor(name, values).cpu().double()
    if prior.ndim == 0:
        if classes != 2:
            raise ValueError(f"{name} must be {classes} numbers, one for each class; got one")
        prior = torch.stack([1 - prior, prior])
    if prior.shape != (classes,):
        raise ValueError(
            f"{name} must be {classes} numbers, one for each class; got shape {tuple(prior.shape)}"
        )
    if not bool((prior > 0).all()):
        at = int((prior > 0).long().argmin())
        raise ValueError(
            f"{name} must be positive for every class, got {float(prior[at]):g} for class "
            f"{class_names[at] if class_names else at}; mask an impossible class by logits of -inf"
        )
    total = float(prior.sum())
    if not abs(total - 1) <= TOLERANCE:
        raise ValueError(f"{name} must sum to 1, got {total:g}")
    return prior / total


def _by_class(name: str, given: Any, names: Sequence[str]) -> Any:
    """Put the numbers of a mapping in the order of the classes; other values are not changed."""
    if not isinstance(given, Mapping):
        return given
    found = {str(key): value for key, value in given.items()}
    for key in found:
        if key not in names:
            raise ValueError(f"{name}: no class {key!r}; {did_you_mean(key, names)}")
    left = [each for each in names if each not in found]
    if len(left) > 1:
        raise ValueError(f"{name} has no number for class {left[0]!r}; only one may be left out")
    return [found[each] if each in found else 1 - sum(found.values()) for each in names]
