"""Fold a calibrator into the weights of the last linear layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.storage import method_of


def fold(calibrator: Calibrator, linear: nn.Linear) -> nn.Linear:
    """Return a new last layer whose outputs are calibrated logits.

    Its log-softmax is `calibrator(linear(x))`. Dtype and device are preserved; the layer has a
    bias if either has one. Only calibrators that are affine in the logits can be folded; use
    `as_module` or `export_onnx` for others. Classes may be masked after the new layer, except with
    a matrix, which mixes the logits of masked classes.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> layer = nn.Linear(3, 2)
        >>> halved = fold(TemperatureScaling(classes=2, temperature=2.0), layer)
        >>> torch.equal(halved.weight, layer.weight / 2)
        True
    """
    method = method_of(calibrator)
    if method not in FOLDS:
        raise ValueError(
            f"{method} cannot be folded into a linear layer; only {', '.join(FOLDS)} can"
        )
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"expected the last nn.Linear of a network, got {type(linear).__name__}")
    if linear.out_features != calibrator.classes:
        raise ValueError(
            f"{method} was fitted on {calibrator.classes} classes, "
            f"the layer has {linear.out_features} outputs"
        )
    given = {
        name: value.to(linear.weight.device) if isinstance(value, Tensor) else value
        for name, value in calibrator.parameters.items()
    }
    with torch.no_grad():
        old = linear.weight.double(), None if linear.bias is None else linear.bias.double()
        weight, bias = FOLDS[method](*old, **given)
        folded = nn.Linear(
            linear.in_features,
            linear.out_features,
            bias=bias is not None,
            device=linear.weight.device,
            dtype=linear.weight.dtype,
        )
        folded.weight.copy_(weight)
        if bias is not None:
            folded.bias.copy_(bias)
    return folded.train(linear.training)


Layer = tuple[Tensor, Tensor | None]


def _identity(weight: Tensor, bias: Tensor | None) -> Layer:
    return weight, bias


def _temperature(weight: Tensor, bias: Tensor | None, *, temperature: float) -> Layer:
    return weight / temperature, None if bias is None else bias / temperature


def _vector(weight: Tensor, old: Tensor | None, *, scale: Tensor, bias: Tensor) -> Layer:
    return scale[:, None] * weight, bias if old is None else scale * old + bias


def _matrix(given: Tensor, old: Tensor | None, *, weight: Tensor, bias: Tensor) -> Layer:
    return weight @ given, bias if old is None else weight @ old + bias


# By name in `calibrators.CALIBRATORS`.
FOLDS: dict[str, Callable[..., Any]] = {
    "identity": _identity,
    "temperature": _temperature,
    "vector": _vector,
    "matrix": _matrix,
}
