"""How parameters are shown: a few labelled numbers, or the shape and range of many."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

# Longest tensor whose entries are shown one by one, and largest that is plain numbers.
SHOWN, LISTED = 3, 1000


def short(value: Any, names: Sequence[str] = ()) -> str:
    """Format a parameter: a number, labelled entries, or the shape and range of many.

    Args:
        value: a number, a string or a tensor.
        names: names of the entries along its last axis, if they have any.

    Examples:
        >>> import torch
        >>> short(1.23456789), short(torch.tensor([[0.5, -2.0]]), ("a", "b"))
        ('1.23457', 'a 0.5, b -2')
        >>> short(torch.tensor([[0.5, -2.0]]))
        '1 x 2 values from -2 to 0.5'
        >>> short(torch.tensor([[0.5, -2.0], [0.75, 3.0]]), ("a", "b"))
        'a from 0.5 to 0.75, b from -2 to 3'
    """
    if names:
        columns = zip(names, value.movedim(-1, 0), strict=True)
        return ", ".join(f"{name} {_range(column)}" for name, column in columns)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(type(part).__name__ for part in value)
    if not isinstance(value, Tensor):
        return str(value)
    shape = " x ".join(map(str, value.shape))
    if not value.numel():
        return "none"
    return _range(value) if value.numel() == 1 else f"{shape} values {_range(value)}"


def _range(value: Tensor) -> str:
    low, high = value.min().item(), value.max().item()
    return f"{low:g}" if value.numel() == 1 else f"from {low:g} to {high:g}"


def shown_parameters(
    parameters: Mapping[str, Any], entry_names: Mapping[str, Sequence[str]], classes: int
) -> dict[str, str]:
    """Format all parameters; a short vector with an entry for each class is labelled by class."""
    labels = tuple(f"class {index}" for index in range(classes if classes <= SHOWN else 0))

    def names(key: str, value: Any) -> Sequence[str]:
        # Integers are positions.
        by_class = isinstance(value, Tensor) and value.is_floating_point()
        by_class = by_class and value.shape == (len(labels),)
        return entry_names.get(key, labels if by_class else ())

    return {key: short(value, names(key, value)) for key, value in parameters.items()}


def plain_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters to numbers and nested lists, for JSON; of large tensors shape and range.

    Examples:
        >>> import torch
        >>> plain_values({"t": 1.23456789, "bias": torch.tensor([0.5, -2.0]), "w": torch.eye(50)})
        {'t': 1.23456789, 'bias': [0.5, -2.0], 'w': {'shape': [50, 50], 'min': 0.0, 'max': 1.0}}
    """

    def plain(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.numel() <= LISTED:
            return value.tolist()
        low, high = value.min().item(), value.max().item()
        return {"shape": list(value.shape), "min": low, "max": high}

    return {name: plain(value) for name, value in parameters.items()}
