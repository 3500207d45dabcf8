"""Put a calibrator into the weights of a network's last layer: nothing is left to run."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.storage import method_of


def fold(calibrator: Calibrator, linear: nn.Linear) -> nn.Linear:
    """Make a last layer whose logits are the calibrated ones; the given one is left alone.

    Its log-softmax is `calibrator(linear(x))`. Type and device are kept; a layer without a bias
    gets one if the calibrator has one. Only a calibrator that is itself linear in the logits can
    be folded: `as_module` and `export_onnx` take all. Classes may be masked behind the new layer,
    but not with a matrix, which has then seen the logits of masked classes.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> layer = nn.Linear(3, 2)
        >>> halved = fold(TemperatureScaling(classes=2, temperature=2.0), layer)
        >>> torch.equal(halved.weight, layer.weight / 2)
        True
    """
    method = method_of(calibrator)
    if method not in FOLDS:
        raise ValueError(f"{method} cannot be folded into a linear layer; {_can_be()}")
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


def _can_be() -> str:
    return f"only {', '.join(FOLDS)} can"


Layer = tuple[Tensor, Tensor | None]


def _identity(weight: Tensor, bias: Tensor | None) -> Layer:
    return weight, bias


def _temperature(weight: Tensor, bias: Tensor | None, *, temperature: float) -> Layer:
    return weight / temperature, None if bias is None else bias / temperature


def _vector(weight: Tensor, old: Tensor | None, *, scale: Tensor, bias: Tensor) -> Layer:
    return scale[:, None] * weight, bias if old is None else scale * old + bias


def _matrix(given: Tensor, old: Tensor | None, *, weight: Tensor, bias: Tensor) -> Layer:
    return weight @ given, bias if old is None else weight @ old + bias


# By the names of `calibrators.CALIBRATORS`.
FOLDS: dict[str, Callable[..., Any]] = {
    "identity": _identity,
    "temperature": _temperature,
    "vector": _vector,
    "matrix": _matrix,
}
