"""Calibrators in torch: folded into the last linear layer, or as a module."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.blend import Blend
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.storage import PRIOR_SHIFT, calibrator_name
from calibrant.export.single import refuse_labels
from calibrant.shapes import Logits

Layer = tuple[Tensor, Tensor | None]


def _identity(weight: Tensor, bias: Tensor | None) -> Layer:
    return weight, bias


def _temperature(weight: Tensor, bias: Tensor | None, *, temperature: float) -> Layer:
    return weight / temperature, None if bias is None else bias / temperature


def _vector(weight: Tensor, old: Tensor | None, *, scale: Tensor, bias: Tensor) -> Layer:
    return scale[:, None] * weight, bias if old is None else scale * old + bias


def _matrix(given: Tensor, old: Tensor | None, *, weight: Tensor, bias: Tensor) -> Layer:
    return weight @ given, bias if old is None else weight @ old + bias


def _prior_shift(
    weight: Tensor, bias: Tensor | None, *, source: Tensor, target: Tensor, calibrator: Calibrator
) -> Layer:
    folded, old = _folded(calibrator, weight, bias)
    ratio = torch.log(target / source)
    return folded, ratio if old is None else old + ratio


# By name in `calibrators.CALIBRATORS`, and a change of priors.
FOLDS: dict[str, Callable[..., Layer]] = {
    "identity": _identity,
    "temperature": _temperature,
    "vector": _vector,
    "matrix": _matrix,
    PRIOR_SHIFT: _prior_shift,
}


def _folded(calibrator: Calibrator, weight: Tensor, bias: Tensor | None) -> Layer:
    name, place = calibrator_name(calibrator), weight.device
    if name not in FOLDS:
        raise ValueError(
            f"{name} cannot be folded into a linear layer; only {', '.join(FOLDS)} can"
        )
    given = {
        key: value.to(place) if isinstance(value, Tensor) else value
        for key, value in calibrator.parameters.items()
    }
    return FOLDS[name](weight, bias, **given)


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
    refuse_labels(calibrator)
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"expected the last nn.Linear of a network, got {type(linear).__name__}")
    if linear.out_features != calibrator.classes:
        raise ValueError(
            f"{calibrator_name(calibrator)} was fitted on {calibrator.classes} classes, "
            f"the layer has {linear.out_features} outputs"
        )
    place: dict[str, Any] = {"device": linear.weight.device, "dtype": linear.weight.dtype}
    with torch.no_grad():
        old = linear.weight.double(), None if linear.bias is None else linear.bias.double()
        weight, bias = _folded(calibrator, *old)
        sizes = linear.in_features, linear.out_features
        # Not initialised, so the global random state stays as it is.
        folded: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, *sizes, bias is not None, **place
        )
        folded.weight.copy_(weight)
        if bias is not None:
            folded.bias.copy_(bias)
    return folded.train(linear.training)


class CalibratorModule(nn.Module):
    """Map logits to log-probabilities, (n, k) each; the parameters are buffers, not trained.

    `.to(device)` moves and `state_dict` saves them; `.to(dtype)` rounds them. It is differentiable
    in the logits. The parts of a blend, and the calibrator before a change of priors, are
    submodules.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator
        if isinstance(calibrator, Blend):
            self.parts = nn.ModuleList(CalibratorModule(part) for part in calibrator.parts)
        if isinstance(calibrator, PriorShift):
            self.inside = CalibratorModule(calibrator.calibrator)
        for name, value in calibrator.parameters.items():
            if isinstance(value, Tensor | float):
                kind = value.dtype if isinstance(value, Tensor) else torch.float64
                self.register_buffer(name, torch.as_tensor(value, dtype=kind).clone())

    def forward(self, logits: Logits) -> Logits:
        """Return log-probabilities, with the current buffers."""
        return self.current()(logits)

    def current(self) -> Calibrator:
        """Return the calibrator with the current buffers."""
        if isinstance(self.calibrator, Blend):
            parts: Any = self.parts
            return replace(self.calibrator, parts=tuple(part.current() for part in parts))
        # Calibrators have float64 tensors and floats, also after a cast of the buffers.
        given = self.calibrator.parameters
        values: dict[str, Any] = {
            name: buffer.to(given[name].dtype) if isinstance(given[name], Tensor) else float(buffer)
            for name, buffer in self.named_buffers(recurse=False)
        }
        if isinstance(self.calibrator, PriorShift):
            values["calibrator"] = self.inside.current()
        return replace(self.calibrator, **values)

    def extra_repr(self) -> str:
        """Name and number of classes."""
        return f"{type(self.calibrator).__name__}, classes={self.calibrator.classes}"


def as_module(calibrator: Calibrator) -> CalibratorModule:
    """Convert a calibrator to a module, for example for `nn.Sequential`.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
        >>> layer(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.7311, 0.2689]]
    """
    refuse_labels(calibrator)
    return CalibratorModule(calibrator)
