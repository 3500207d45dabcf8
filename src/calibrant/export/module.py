"""A calibrator as the last layer of a network."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.blend import Blend
from calibrant.shapes import Logits


class CalibratorModule(nn.Module):
    """Logits to log-probabilities, (n, k) each; the fitted numbers are buffers, not trained.

    They move with `.to(device)`, and a `state_dict` brings them back. `.to(dtype)` rounds them as
    it rounds the weights of a network. Gradients flow through to the logits.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator
        held = calibrator.parts if isinstance(calibrator, Blend) else ()
        # A blend's parts are layers of their own.
        self._parts = [CalibratorModule(part) for part in held]
        if held:
            self.parts = nn.ModuleList(self._parts)
        for name, value in calibrator.parameters.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value.clone())
            elif isinstance(value, float):
                self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, logits: Logits) -> Logits:
        """Log-probabilities with the buffers as they are now."""
        return self.current()(logits)

    def current(self) -> Calibrator:
        """The calibrator with the numbers that the buffers have now."""
        return replace(self.calibrator, **self._current())

    def extra_repr(self) -> str:
        """Which calibrator, for how many classes."""
        return f"{type(self.calibrator).__name__}, classes={self.calibrator.classes}"

    def _current(self) -> Mapping[str, Any]:
        if self._parts:
            return {"parts": tuple(part.current() for part in self._parts)}
        # Calibrators hold float64 and plain floats, whatever a cast has made of the buffers.
        given = self.calibrator.parameters
        return {
            name: buffer.to(given[name].dtype) if isinstance(given[name], Tensor) else float(buffer)
            for name, buffer in self.named_buffers()
        }


def as_module(calibrator: Calibrator) -> CalibratorModule:
    """Make a layer of a calibrator, to follow a network in `nn.Sequential`.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
        >>> layer(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.7311, 0.2689]]
    """
    return CalibratorModule(calibrator)
